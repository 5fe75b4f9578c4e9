"""Two namespaces' deliveries become one stream in which each message is handed over once.

What it is: the decisions of a receiver of two namespaces, pure: what arrived, what the list of seen messages said of it, what the
application did with it and the time go in; what to settle, renew, release and ask again comes out. What it is not: connections
(`branch`), the list (`isthmus.client.seen`), threads. Over 400 lines, since an event and what it leads to are read together.

Invariants:
    M1. Of the deliveries of one message one at a time is with the application.
    M2. A delivery is completed only once its message is handled, as the list says durably.
    M3. A message whose handler failed, or whose namespace went away before, is handed over again: its copy if there is one.
    M4. Everything that is received is handed over, settled, given back, or waits for something that ends by itself.
    M5. A namespace that is away, or hangs, delays no message of the other for longer than `order_wait_seconds`.
    M6. No answer of the list counts for a message that was done with, or whose claim was taken back, after the question: it may have been
        on its way meanwhile.
    M7. With `keeps_order` messages are handed over in the order of the leading namespace, as long as both hold them in one order; none
        overtakes one about which the list has yet to be asked again.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from enum import Enum

from isthmus.client.seen.store import Keys, Verdict

__all__ = ["Action", "Ask", "Counts", "Delivery", "Effect", "Merge", "Release", "Renew", "Settle"]


class Action(Enum):
    """What becomes of a delivery at its namespace."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    GIVE_BACK = "give back"
    """As abandon, where possible without counting as an attempt: nobody has seen it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a namespace delivered.

    Attributes:
        number: of the delivery; no two have the same.
        side: the namespace.
        keys: of its message.
        renew_seconds: how often its lock is to be renewed; infinite where it has none of its own (sessions).
        sequence: its number in the entity there: what is delivered again has the same; a copy that is there as well has another.
    """

    number: int
    side: str
    keys: Keys
    renew_seconds: float = math.inf
    sequence: int = 0

    def is_again(self, earlier: Delivery) -> bool:
        """Whether it is what was behind an earlier delivery, whose lock is gone then."""
        return self.side == earlier.side and self.sequence == earlier.sequence


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle a delivery at its namespace. That it fails needs no answer: it is delivered again, and is known."""

    number: int
    side: str
    action: Action


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lock of a delivery."""

    number: int
    side: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take back the claim of a message in the list, before what comes after it; `Merge.released` answers."""

    keys: Keys


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the list about a delivery again, and give the answer to `Merge.answered`."""

    number: int
    side: str
    keys: Keys


Effect = Settle | Renew | Release | Ask


@dataclass(slots=True)
class Counts:
    """Counts so far.

    Attributes:
        handed_over: deliveries that went to the application.
        handled: messages that the application completed, dead-lettered or deferred.
        suppressed: deliveries that were settled without being handed over, since their message is handled.
        failed: messages that the application abandoned.
        out_of_order: messages that were handed over without the leading namespace having delivered them in `order_wait_seconds`.
    """

    handed_over: int = 0
    handled: int = 0
    suppressed: int = 0
    failed: int = 0
    out_of_order: int = 0


class _Phase(Enum):
    WAITING = "waiting"  # for the leading namespace to deliver it
    READY = "ready"
    HANDED = "handed"


class _Held:
    """A delivery that is not settled."""

    __slots__ = ("ask_at", "delivery", "entry", "is_fetched", "is_lost", "is_overdue", "order", "rank", "renew_at")

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.renew_at = now + delivery.renew_seconds
        self.entry: _Entry | None = None
        self.order = delivery.number  # among those of its namespace; what is delivered again keeps its place
        self.rank = math.inf  # among those of all namespaces whose claims were doubted
        self.is_lost = False
        self.is_fetched = False  # deferred: its lock is not the link's
        self.is_overdue = False  # with the application, though its claim was given up
        self.ask_at = math.inf


class _Entry:
    """A message that this receiver has claimed."""

    __slots__ = ("copies", "current", "keys", "order", "phase", "since")

    def __init__(self, current: _Held, phase: _Phase, now: float) -> None:
        self.current = current
        self.copies: list[_Held] = []
        self.keys = set(current.delivery.keys)
        self.phase = phase
        self.since = now
        self.order = (current.rank, current.order)


def _is_before(one: _Held, other: _Held) -> bool:
    if one.delivery.side == other.delivery.side and one.order < other.order:
        return True
    return one.rank < other.rank < math.inf


class Merge:
    """The machine.

    Args:
        sides: the namespaces; the first one that is open leads.
        prefetch: deliveries of a namespace that wait for the application at most, beyond what it asks for.
        keeps_order: whether what another namespace delivers first waits for the leading one.
        order_wait_seconds: how long.
        max_renewal_seconds: how long the locks of one message are renewed, from when it is ready and again from when it is handed over. With
            `keeps_order` what is not with the application counts from the last `take`, and goes back together.
        ask_seconds: how long until the list is asked again about a message that another receiver has.
    """

    def __init__(
        self,
        sides: Sequence[str],
        *,
        prefetch: int = 20,
        keeps_order: bool = False,
        order_wait_seconds: float = 1.0,
        max_renewal_seconds: float = 300.0,
        ask_seconds: float = 0.5,
    ) -> None:
        self.counts = Counts()
        self._sides = tuple(sides)
        self._prefetch = prefetch
        self._keeps_order = keeps_order
        self._order_wait_seconds = order_wait_seconds
        self._max_renewal_seconds = max_renewal_seconds
        self._ask_seconds = ask_seconds
        self._open: set[str] = set()
        self._held: dict[int, _Held] = {}
        self._entries: dict[bytes, _Entry] = {}
        self._ready: deque[_Entry] = deque()
        self._waiting: list[_Entry] = []
        self._taken_at = -math.inf
        self._rank = 0
        self._question = 0
        self._questions: dict[int, set[bytes]] = {}  # those under way: keys of messages that were done with since
        self._releasing: Counter[bytes] = Counter()

    # ---- what is seen from outside

    def __len__(self) -> int:
        """Deliveries that are not settled."""
        return len(self._held)

    def __contains__(self, number: int) -> bool:
        """Whether a delivery is not settled."""
        return number in self._held

    @property
    def ready(self) -> int:
        """Messages that `take` would give."""
        return len(self._ready)

    @property
    def asking(self) -> int:
        """Deliveries whose message another receiver has, or about which the list has not answered."""
        return sum(held.entry is None and not held.is_overdue for held in self._held.values())

    def unsettled_of(self, side: str) -> int:
        """Deliveries of a namespace that are not settled, and can be."""
        return sum(held.delivery.side == side and not held.is_lost for held in self._held.values())

    def demand(self, side: str, wanted: int = 0) -> int:
        """How many more deliveries to take from a namespace.

        Args:
            side: the namespace.
            wanted: how many messages the application asks for at once.
        """
        queued = sum(
            held.delivery.side == side
            and not held.is_overdue
            and (held.entry is None or held.entry.phase is not _Phase.HANDED)
            for held in self._held.values()
        )
        return max(0, max(self._prefetch, wanted) - queued)

    # ---- events

    def opened(self, side: str) -> None:
        """A namespace is connected."""
        self._open.add(side)

    def lost(self, side: str, now: float) -> list[Effect]:
        """The connection to a namespace is gone, and with it the locks of its deliveries; they are delivered again."""
        self._open.discard(side)
        for held in self._of(side):
            held.is_lost = True
            held.renew_at = math.inf
            entry = held.entry
            if entry is None:
                self._forget(held)
            elif held is not entry.current:
                entry.copies.remove(held)
                self._forget(held)
            elif entry.phase is not _Phase.HANDED and entry.copies:
                entry.current = entry.copies.pop(0)
                self._forget(held)
            # Otherwise it stays to be handed over, or is: it may be the last that is left of its message.
        return self._let_pass(now)

    def closed(self, side: str, now: float) -> list[Effect]:
        """A namespace is read no more: what is not with the application goes back to it."""
        self._open.discard(side)
        effects: list[Effect] = []
        for held in self._of(side):
            entry = held.entry
            if entry is not None and held is entry.current and entry.phase is _Phase.HANDED:
                held.is_lost, held.renew_at = True, math.inf
                continue
            self._forget(held)
            if entry is not None and held is not entry.current:
                entry.copies.remove(held)
            elif entry is not None and entry.copies:
                entry.current = entry.copies.pop(0)
            elif entry is not None:
                effects.append(self._released(entry))
            if not held.is_lost and not held.is_overdue:
                effects.append(Settle(held.delivery.number, side, Action.GIVE_BACK))
        return effects + self._let_pass(now)

    def asks(self) -> int:
        """The list is asked now: the question's number, for the answers; `asked` ends it."""
        self._question += 1
        self._questions[self._question] = set()
        return self._question

    def asked(self, question: int) -> None:
        """All answers to a question have been given."""
        self._questions.pop(question, None)

    def received(self, delivery: Delivery, verdict: Verdict | None, now: float, question: int = 0) -> list[Effect]:
        """A delivery arrived, and the list said this of it; None where it did not answer."""
        if delivery.side not in self._open:  # since the list was asked
            return self._unused(delivery.keys, verdict)
        held = self._held[delivery.number] = _Held(delivery, now)
        return self._judge(held, verdict, now, question, is_sure=False)

    def answered(self, ask: Ask, verdict: Verdict | None, now: float, question: int = 0) -> list[Effect]:
        """The list said this to a question; None where it did not answer."""
        held = self._held.get(ask.number)
        if held is not None:
            return self._judge(held, verdict, now, question, is_sure=True)
        return self._unused(ask.keys, verdict)

    def released(self, keys: Keys) -> None:
        """A claim was taken back, or the list did not answer that."""
        self._releasing.subtract(keys)
        self._releasing += Counter()  # drops what is at zero
        self._done_with(keys)

    def doubted(self, now: float) -> None:
        """The claims may have run out, since this process hung: nothing is handed over before the list is asked again."""
        last = -math.inf
        for entry in self._not_handed():
            rank = entry.current.rank
            if not last < rank < math.inf:
                self._rank += 1
                rank = self._rank
            last = rank
            for held in (entry.current, *entry.copies):
                held.rank = rank
                held.entry = None
                held.ask_at = now
            entry.copies.clear()
            self._remove(entry)

    def take(self, limit: int, now: float) -> list[int]:
        """Hands messages over to the application: the numbers of their deliveries."""
        taken: list[int] = []
        while self._ready and len(taken) < limit:
            entry = self._ready.popleft()
            entry.phase, entry.since = _Phase.HANDED, now
            taken.append(entry.current.delivery.number)
            self._taken_at = now
        self.counts.handed_over += len(taken)
        return taken

    def fetched(self, delivery: Delivery, now: float) -> None:
        """The application fetched a deferred message itself: it has it, and the list calls it handled already."""
        held = self._held[delivery.number] = _Held(delivery, now)
        held.is_fetched = True
        held.entry = _Entry(held, _Phase.HANDED, now)
        self.counts.handed_over += 1

    def keys_of(self, number: int, known: Iterable[bytes] = ()) -> frozenset[bytes]:
        """All keys of the message of a delivery, those of its copies included; empty where it is settled.

        Args:
            number: of the delivery.
            known: keys that the message has: what came again since the delivery was given up has keys of its own.
        """
        held = self._held.get(number)
        entries = [] if held is None or held.entry is None else [held.entry]
        entries += [entry for key in known if (entry := self._entries.get(key)) is not None]
        return frozenset().union(*(entry.keys for entry in entries))

    def deliveries_of(self, number: int) -> list[Delivery]:
        """The deliveries of a message that can still be settled, that of the application first."""
        held = self._held.get(number)
        if held is not None and held.is_overdue:
            return [held.delivery]
        if held is None or held.entry is None:
            return []
        return [each.delivery for each in (held.entry.current, *held.entry.copies) if not each.is_lost]

    def handled(self, number: int, settled: int | None = None, keys: Iterable[bytes] = ()) -> list[Effect]:
        """The list remembers a message durably as handled.

        Args:
            number: of the delivery that the application has.
            settled: the delivery that is settled already, otherwise than by completion.
            keys: that the list remembers. A delivery that was given up, or abandoned meanwhile, may have come again: that is the same message.
        """
        self.counts.handled += 1
        keys = tuple(keys)
        self._done_with(keys)
        held = self._held.get(number)
        effects: list[Effect] = []
        if held is not None and held.entry is not None:
            self.counts.suppressed -= 1  # the delivery that the application has
            effects += self._complete(held.entry, settled)
        elif held is not None and held.is_overdue:
            self._forget(held)
            if number != settled:
                effects.append(Settle(number, held.delivery.side, Action.COMPLETE))
        for key in keys:
            again = self._entries.get(key)
            if again is not None and again.phase is not _Phase.HANDED:
                effects += self._complete(again, settled)
        return effects

    def _complete(self, entry: _Entry, settled: int | None) -> list[Effect]:
        effects: list[Effect] = []
        for each in (entry.current, *entry.copies):
            self._forget(each)
            if not each.is_lost and each.delivery.number != settled:
                effects.append(Settle(each.delivery.number, each.delivery.side, Action.COMPLETE))
        self.counts.suppressed += 1 + len(entry.copies)
        self._remove(entry)
        return effects

    def failed(self, number: int, now: float) -> list[Effect]:
        """The application's handler failed: the copy is next; without one the message goes back to its namespace."""
        self.counts.failed += 1
        held = self._held.get(number)
        if held is not None and held.is_overdue:
            self._forget(held)
            return [Settle(number, held.delivery.side, Action.ABANDON)]
        if held is None or held.entry is None:
            return []
        entry = held.entry
        effects: list[Effect] = []
        self._forget(held)
        if not held.is_lost:
            effects.append(Settle(number, held.delivery.side, Action.ABANDON))
        if entry.copies:
            entry.current = entry.copies.pop(0)
            entry.phase, entry.since = _Phase.READY, now
            self._ready.appendleft(entry)
            return effects
        return [self._released(entry), *effects]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed; to be called a few times a second."""
        effects: list[Effect] = []
        for held in list(self._held.values()):
            entry = held.entry
            if entry is None and held.ask_at <= now:
                held.ask_at = math.inf
                effects.append(Ask(held.delivery.number, held.delivery.side, held.delivery.keys))
            if held.renew_at <= now:
                held.renew_at = now + held.delivery.renew_seconds
                effects.append(Renew(held.delivery.number, held.delivery.side))
        for entry in {id(each.entry): each.entry for each in self._held.values() if each.entry is not None}.values():
            if entry.current.delivery.number not in self._held:
                continue  # given up with another
            if now - self._since(entry) >= self._max_renewal_seconds:
                # In order all that waits goes back with the first: what stayed would be handed over before it.
                goes = [entry] if entry.phase is _Phase.HANDED or not self._keeps_order else self._not_handed()
                effects += [effect for each in goes for effect in self._give_up(each)]
        return effects + self._let_pass(now)

    # ---- within

    def _judge(self, held: _Held, verdict: Verdict | None, now: float, question: int, *, is_sure: bool) -> list[Effect]:
        delivery = held.delivery
        if verdict is Verdict.HANDLED:
            self._forget(held)
            self.counts.suppressed += 1
            return [Settle(delivery.number, delivery.side, Action.COMPLETE)]
        if verdict is None or verdict is Verdict.OTHERS:
            held.ask_at = now + self._ask_seconds
            return []
        entry = next((self._entries[key] for key in delivery.keys if key in self._entries), None)
        if entry is not None:
            return self._joined(entry, held, now)
        if self._is_stale(delivery.keys, question):
            held.ask_at = now
            return []
        if verdict is Verdict.MINE and not is_sure:
            # It was claimed a moment ago, and is no more here: it was handled or released since, unless the list says so again.
            held.ask_at = now
            return []
        return self._new(held, now)

    def _unused(self, keys: Keys, verdict: Verdict | None) -> list[Effect]:
        """An answer for a delivery that is gone: a claim that nothing here has is taken back."""
        is_claimed = verdict in (Verdict.NEW, Verdict.MINE)
        return [self._release(keys)] if is_claimed and not any(key in self._entries for key in keys) else []

    def _new(self, held: _Held, now: float) -> list[Effect]:
        held.ask_at = math.inf
        entry = held.entry = _Entry(held, _Phase.WAITING, now)
        self._entries.update(dict.fromkeys(entry.keys, entry))
        if self._may_pass(entry):
            self._pass(entry, now)
        else:
            bisect.insort(self._waiting, entry, key=lambda each: each.order)
        return []

    def _joined(self, entry: _Entry, held: _Held, now: float) -> list[Effect]:
        if held.entry is not None:
            return []
        held.entry = entry
        held.ask_at = math.inf
        entry.keys.update(held.delivery.keys)
        self._entries.update(dict.fromkeys(held.delivery.keys, entry))
        delivery = held.delivery
        for each in [each for each in entry.copies if delivery.is_again(each.delivery)]:
            entry.copies.remove(each)
            self._forget(each)
        current = entry.current
        if delivery.is_again(current.delivery):
            if entry.phase is not _Phase.HANDED:
                entry.current = held
                held.order, held.rank = current.order, current.rank
                self._forget(current)
                return []
            current.is_lost, current.renew_at = True, math.inf
        held.rank = current.rank
        entry.copies.append(held)
        if entry.phase is _Phase.WAITING and delivery.side == self._leader:
            entry.copies.remove(held)
            entry.copies.append(current)
            entry.current = held
            entry.order = (held.rank, held.order)
            self._waiting.sort(key=lambda each: each.order)
            if self._may_pass(entry):
                self._waiting.remove(entry)
                self._pass(entry, now)
        return []

    def _let_pass(self, now: float) -> list[Effect]:
        """What has waited for the leading namespace long enough, or for one that does not lead any more, is ready."""
        for entry in list(self._waiting):
            is_late = now - entry.since >= self._order_wait_seconds
            if self._may_pass(entry, is_late=is_late):
                self.counts.out_of_order += self._leader not in (None, entry.current.delivery.side)
                self._waiting.remove(entry)
                self._pass(entry, now)
        return []

    def _may_pass(self, entry: _Entry, *, is_late: bool = False) -> bool:
        if not self._keeps_order:
            return True
        if not is_late and self._leader not in (None, entry.current.delivery.side):
            return False
        # A delivery that is asked about again is before it: another receiver, perhaps a dead one, has that message. So is what waits for such.
        return not any(
            each.entry is None and not each.is_overdue and _is_before(each, entry.current)
            for each in self._held.values()
        ) and not any(_is_before(each.current, entry.current) for each in self._waiting)

    def _pass(self, entry: _Entry, now: float) -> None:
        entry.phase, entry.since = _Phase.READY, now
        self._ready.append(entry)

    def _since(self, entry: _Entry) -> float:
        """From when on its locks are renewed; that of a session is renewed anyway while the application takes messages."""
        if entry.phase is _Phase.HANDED or not self._keeps_order:
            return entry.since
        return max(entry.since, self._taken_at)

    def _not_handed(self) -> list[_Entry]:
        return [*self._ready, *self._waiting]

    def _give_up(self, entry: _Entry) -> Iterable[Effect]:
        """Nobody has handled it for too long: it goes back, and another receiver may have it."""
        yield self._released(entry)
        for held in (entry.current, *entry.copies):
            if self._keeps_order and entry.phase is _Phase.HANDED and held is entry.current and not held.is_lost:
                held.entry, held.is_overdue = None, True  # it can be settled as long as the session's lock is renewed
                continue
            self._forget(held)
            if not held.is_lost and not (entry.phase is _Phase.HANDED and held is entry.current):
                yield Settle(held.delivery.number, held.delivery.side, Action.GIVE_BACK)

    @property
    def _leader(self) -> str | None:
        return next((side for side in self._sides if side in self._open), None)

    def _of(self, side: str) -> list[_Held]:
        """What goes with the link to a namespace."""
        return [each for each in self._held.values() if each.delivery.side == side and not each.is_fetched]

    def _forget(self, held: _Held) -> None:
        self._held.pop(held.delivery.number, None)

    def _is_stale(self, keys: Keys, question: int) -> bool:
        """Whether an answer may be from before what became of the message (M6)."""
        return any(key in self._releasing for key in keys) or not self._questions.get(question, set()).isdisjoint(keys)

    def _done_with(self, keys: Iterable[bytes]) -> None:
        for since in self._questions.values():
            since.update(keys)

    def _released(self, entry: _Entry) -> Release:
        self._remove(entry)
        return self._release(tuple(entry.keys))

    def _release(self, keys: Keys) -> Release:
        self._releasing.update(keys)
        return Release(keys)

    def _remove(self, entry: _Entry) -> None:
        self._done_with(entry.keys)
        for key in entry.keys:
            if self._entries.get(key) is entry:
                del self._entries[key]
        queues: tuple[MutableSequence[_Entry], ...] = (self._ready, self._waiting)
        for queue in queues:
            if entry in queue:
                queue.remove(entry)
