"""The merge machine: the deliveries of two namespaces become one stream in which each message is handed over once.

What it is: the decisions of a receiver of two namespaces, pure: arrivals, answers of the list of seen messages, actions of the
application and the time go in; settlements, renewals, releases and new questions come out. What it is not: connections (`branch`), the list
(`isthmus.client.seen`), threads. Over 400 lines, since an event and its consequences are read together.

Invariants:
    M1. Of the deliveries of one message, the application has at most one at a time.
    M2. A delivery is completed only after the list has recorded its message durably as handled.
    M3. A message whose handler failed, or whose namespace was lost before, is handed over again: its copy if there is one.
    M4. Every received delivery is handed over, settled, given back, or waits for an event that is certain to occur.
    M5. A namespace that is unavailable, or hangs, delays no message of the other for longer than `order_wait_seconds`.
    M6. An answer of the list is ignored for a message that was finished, or whose claim was released, after the question: the answer may
        have been given before.
    M7. With `keeps_order` messages are handed over in the order of the leading namespace, as long as both have them in one order; no
        message overtakes one about which the list has to be asked again.
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
    """The settlement of a delivery at its namespace."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    GIVE_BACK = "give back"
    """As abandon, where possible without counting as an attempt: no handler has received it."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a namespace delivered.

    Attributes:
        number: of the delivery; no two have the same.
        side: the namespace.
        keys: keys of its message.
        renew_seconds: how often its lock is to be renewed; infinite if it has no lock of its own (sessions).
        sequence: its sequence number in the entity: a redelivery has the same; a copy in the same entity has another.
    """

    number: int
    side: str
    keys: Keys
    renew_seconds: float = math.inf
    sequence: int = 0

    def is_redelivery_of(self, earlier: Delivery) -> bool:
        """Whether this is a redelivery of an earlier delivery, whose lock is then lost."""
        return self.side == earlier.side and self.sequence == earlier.sequence


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle a delivery at its namespace. A failure needs no answer: the message is delivered again, and is recognised."""

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
    """Release the claim of a message in the list, before later effects; the owner reports it with `Merge.released`."""

    keys: Keys


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the list about a delivery again, and pass the answer to `Merge.answered`."""

    number: int
    side: str
    keys: Keys


Effect = Settle | Renew | Release | Ask


@dataclass(slots=True)
class Counts:
    """Counts so far.

    Attributes:
        handed_over: deliveries that were handed over to the application.
        handled: messages that the application completed, dead-lettered or deferred.
        suppressed: deliveries that were settled without being handed over, because their message was handled before.
        failed: messages that the application abandoned.
        out_of_order: messages that were handed over although the leading namespace had not delivered them within `order_wait_seconds`.
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


class _Unsettled:
    """An unsettled delivery."""

    __slots__ = ("ask_at", "delivery", "entry", "is_fetched", "is_lost", "is_overdue", "order", "rank", "renew_at")

    def __init__(self, delivery: Delivery, now: float) -> None:
        self.delivery = delivery
        self.renew_at = now + delivery.renew_seconds
        self.entry: _Entry | None = None
        self.order = delivery.number  # order in its namespace; a redelivery keeps the order of the first delivery
        self.rank = math.inf  # order among the deliveries of all namespaces whose claims were doubted
        self.is_lost = False
        self.is_fetched = False  # deferred: its lock does not belong to the link
        self.is_overdue = False  # the application has it, although its claim was released
        self.ask_at = math.inf


class _Entry:
    """A message that this receiver has claimed."""

    __slots__ = ("copies", "current", "keys", "order", "phase", "since")

    def __init__(self, current: _Unsettled, phase: _Phase, now: float) -> None:
        self.current = current
        self.copies: list[_Unsettled] = []
        self.keys = set(current.delivery.keys)
        self.phase = phase
        self.since = now
        self.order = (current.rank, current.order)


def _is_before(one: _Unsettled, other: _Unsettled) -> bool:
    if one.delivery.side == other.delivery.side and one.order < other.order:
        return True
    return one.rank < other.rank < math.inf


class Merge:
    """The merge machine.

    Args:
        sides: the namespaces; the first open one leads.
        prefetch: the most deliveries of a namespace that wait for the application, beyond the requested ones.
        keeps_order: whether a message that another namespace delivers first waits for the leading one.
        order_wait_seconds: how long it waits.
        max_renewal_seconds: how long the locks of one message are renewed, from when it is ready and again from when it is handed over. With
            `keeps_order`, messages that wait count from the last `take`, and are given back together.
        ask_seconds: seconds after which the list is asked again about a message that another receiver has.
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
        self._unsettled: dict[int, _Unsettled] = {}
        self._entries: dict[bytes, _Entry] = {}
        self._ready: deque[_Entry] = deque()
        self._waiting: list[_Entry] = []
        self._taken_at = -math.inf
        self._rank = 0
        self._question = 0
        self._questions: dict[int, set[bytes]] = {}  # open questions: keys of messages that were finished since
        self._releasing: Counter[bytes] = Counter()

    # ---- queries

    def __len__(self) -> int:
        """The number of unsettled deliveries."""
        return len(self._unsettled)

    def __contains__(self, number: int) -> bool:
        """Whether a delivery is unsettled."""
        return number in self._unsettled

    @property
    def ready(self) -> int:
        """The number of messages that `take` would return."""
        return len(self._ready)

    @property
    def asking(self) -> int:
        """The number of deliveries of messages that another receiver has, or about which the list has not answered."""
        return sum(unsettled.entry is None and not unsettled.is_overdue for unsettled in self._unsettled.values())

    def unsettled_of(self, side: str) -> int:
        """The number of unsettled deliveries of a namespace that can still be settled."""
        return sum(unsettled.delivery.side == side and not unsettled.is_lost for unsettled in self._unsettled.values())

    def demand(self, side: str, wanted: int = 0) -> int:
        """How many more deliveries to take from a namespace.

        Args:
            side: the namespace.
            wanted: how many messages the application asks for at once.
        """
        queued = sum(
            unsettled.delivery.side == side
            and not unsettled.is_overdue
            and (unsettled.entry is None or unsettled.entry.phase is not _Phase.HANDED)
            for unsettled in self._unsettled.values()
        )
        return max(0, max(self._prefetch, wanted) - queued)

    # ---- events

    def opened(self, side: str) -> None:
        """A namespace is connected."""
        self._open.add(side)

    def lost(self, side: str, now: float) -> list[Effect]:
        """The connection to a namespace is lost, and with it the locks of its deliveries; the messages are delivered again."""
        self._open.discard(side)
        for unsettled in self._of(side):
            unsettled.is_lost = True
            unsettled.renew_at = math.inf
            entry = unsettled.entry
            if entry is None:
                self._forget(unsettled)
            elif unsettled is not entry.current:
                entry.copies.remove(unsettled)
                self._forget(unsettled)
            elif entry.phase is not _Phase.HANDED and entry.copies:
                entry.current = entry.copies.pop(0)
                self._forget(unsettled)
            # Otherwise the message waits or is handed over: this may be its last delivery.
        return self._let_pass(now)

    def closed(self, side: str, now: float) -> list[Effect]:
        """A namespace is no longer read: messages that the application does not have are given back to it."""
        self._open.discard(side)
        effects: list[Effect] = []
        for unsettled in self._of(side):
            entry = unsettled.entry
            if entry is not None and unsettled is entry.current and entry.phase is _Phase.HANDED:
                unsettled.is_lost, unsettled.renew_at = True, math.inf
                continue
            self._forget(unsettled)
            if entry is not None and unsettled is not entry.current:
                entry.copies.remove(unsettled)
            elif entry is not None and entry.copies:
                entry.current = entry.copies.pop(0)
            elif entry is not None:
                effects.append(self._released(entry))
            if not unsettled.is_lost and not unsettled.is_overdue:
                effects.append(Settle(unsettled.delivery.number, side, Action.GIVE_BACK))
        return effects + self._let_pass(now)

    def asks(self) -> int:
        """The list is being asked. Returns the number of the question, for the answers; `asked` ends the question."""
        self._question += 1
        self._questions[self._question] = set()
        return self._question

    def asked(self, question: int) -> None:
        """All answers to a question have been processed."""
        self._questions.pop(question, None)

    def received(self, delivery: Delivery, verdict: Verdict | None, now: float, question: int = 0) -> list[Effect]:
        """A delivery arrived; `verdict` is the list's answer, None if the list did not answer."""
        if delivery.side not in self._open:  # since the list was asked
            return self._unused(delivery.keys, verdict)
        unsettled = self._unsettled[delivery.number] = _Unsettled(delivery, now)
        return self._judge(unsettled, verdict, now, question, is_sure=False)

    def answered(self, ask: Ask, verdict: Verdict | None, now: float, question: int = 0) -> list[Effect]:
        """The list answered a question with `verdict`; None if it did not answer."""
        unsettled = self._unsettled.get(ask.number)
        if unsettled is not None:
            return self._judge(unsettled, verdict, now, question, is_sure=True)
        return self._unused(ask.keys, verdict)

    def released(self, keys: Keys) -> None:
        """A claim was released, or the list did not answer the release."""
        self._releasing.subtract(keys)
        self._releasing += Counter()  # removes keys with count zero
        self._done_with(keys)

    def doubted(self, now: float) -> None:
        """The claims may have expired, since this process hung: nothing is handed over before the list is asked again."""
        last = -math.inf
        for entry in self._not_handed():
            rank = entry.current.rank
            if not last < rank < math.inf:
                self._rank += 1
                rank = self._rank
            last = rank
            for unsettled in (entry.current, *entry.copies):
                unsettled.rank = rank
                unsettled.entry = None
                unsettled.ask_at = now
            entry.copies.clear()
            self._remove(entry)

    def take(self, limit: int, now: float) -> list[int]:
        """Hands messages over to the application. Returns the numbers of their deliveries."""
        taken: list[int] = []
        while self._ready and len(taken) < limit:
            entry = self._ready.popleft()
            entry.phase, entry.since = _Phase.HANDED, now
            taken.append(entry.current.delivery.number)
            self._taken_at = now
        self.counts.handed_over += len(taken)
        return taken

    def fetched(self, delivery: Delivery, now: float) -> None:
        """The application fetched a deferred message itself; the list has it as handled already."""
        unsettled = self._unsettled[delivery.number] = _Unsettled(delivery, now)
        unsettled.is_fetched = True
        unsettled.entry = _Entry(unsettled, _Phase.HANDED, now)
        self.counts.handed_over += 1

    def keys_of(self, number: int, known: Iterable[bytes] = ()) -> frozenset[bytes]:
        """All keys of the message of a delivery, including those of its copies; empty if it is settled.

        Args:
            number: of the delivery.
            known: known keys of the message: a redelivery after the delivery was given up has keys of its own.
        """
        unsettled = self._unsettled.get(number)
        entries = [] if unsettled is None or unsettled.entry is None else [unsettled.entry]
        entries += [entry for key in known if (entry := self._entries.get(key)) is not None]
        return frozenset().union(*(entry.keys for entry in entries))

    def deliveries_of(self, number: int) -> list[Delivery]:
        """The deliveries of a message that can still be settled, the application's first."""
        unsettled = self._unsettled.get(number)
        if unsettled is not None and unsettled.is_overdue:
            return [unsettled.delivery]
        if unsettled is None or unsettled.entry is None:
            return []
        return [each.delivery for each in (unsettled.entry.current, *unsettled.entry.copies) if not each.is_lost]

    def handled(self, number: int, settled: int | None = None, keys: Iterable[bytes] = ()) -> list[Effect]:
        """The list has recorded a message durably as handled.

        Args:
            number: of the delivery that the application has.
            settled: a delivery that is settled already, by another disposition than completion.
            keys: recorded keys. A delivery that was given up, or abandoned meanwhile, may have been redelivered: that is the same message.
        """
        self.counts.handled += 1
        keys = tuple(keys)
        self._done_with(keys)
        unsettled = self._unsettled.get(number)
        effects: list[Effect] = []
        if unsettled is not None and unsettled.entry is not None:
            self.counts.suppressed -= 1  # the delivery that the application has
            effects += self._complete(unsettled.entry, settled)
        elif unsettled is not None and unsettled.is_overdue:
            self._forget(unsettled)
            if number != settled:
                effects.append(Settle(number, unsettled.delivery.side, Action.COMPLETE))
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
        """The application's handler failed: the copy is next; without one, the message is given back to its namespace."""
        self.counts.failed += 1
        unsettled = self._unsettled.get(number)
        if unsettled is not None and unsettled.is_overdue:
            self._forget(unsettled)
            return [Settle(number, unsettled.delivery.side, Action.ABANDON)]
        if unsettled is None or unsettled.entry is None:
            return []
        entry = unsettled.entry
        effects: list[Effect] = []
        self._forget(unsettled)
        if not unsettled.is_lost:
            effects.append(Settle(number, unsettled.delivery.side, Action.ABANDON))
        if entry.copies:
            entry.current = entry.copies.pop(0)
            entry.phase, entry.since = _Phase.READY, now
            self._ready.appendleft(entry)
            return effects
        return [self._released(entry), *effects]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed; has to be called a few times a second."""
        effects: list[Effect] = []
        for unsettled in list(self._unsettled.values()):
            entry = unsettled.entry
            if entry is None and unsettled.ask_at <= now:
                unsettled.ask_at = math.inf
                effects.append(Ask(unsettled.delivery.number, unsettled.delivery.side, unsettled.delivery.keys))
            if unsettled.renew_at <= now:
                unsettled.renew_at = now + unsettled.delivery.renew_seconds
                effects.append(Renew(unsettled.delivery.number, unsettled.delivery.side))
        for entry in {
            id(each.entry): each.entry for each in self._unsettled.values() if each.entry is not None
        }.values():
            if entry.current.delivery.number not in self._unsettled:
                continue  # given up together with another
            if now - self._since(entry) >= self._max_renewal_seconds:
                # In order, all waiting messages are given back with the first: one that stayed would be handed over before it.
                goes = [entry] if entry.phase is _Phase.HANDED or not self._keeps_order else self._not_handed()
                effects += [effect for each in goes for effect in self._give_up(each)]
        return effects + self._let_pass(now)

    # ---- internal

    def _judge(
        self, unsettled: _Unsettled, verdict: Verdict | None, now: float, question: int, *, is_sure: bool
    ) -> list[Effect]:
        delivery = unsettled.delivery
        if verdict is Verdict.HANDLED:
            self._forget(unsettled)
            self.counts.suppressed += 1
            return [Settle(delivery.number, delivery.side, Action.COMPLETE)]
        if verdict is None or verdict is Verdict.OTHERS:
            unsettled.ask_at = now + self._ask_seconds
            return []
        entry = next((self._entries[key] for key in delivery.keys if key in self._entries), None)
        if entry is not None:
            return self._joined(entry, unsettled, now)
        if self._is_stale(delivery.keys, question):
            unsettled.ask_at = now
            return []
        if verdict is Verdict.MINE and not is_sure:
            # It was claimed a moment ago, and has no entry here: it was handled or released since, unless the list repeats the verdict.
            unsettled.ask_at = now
            return []
        return self._new(unsettled, now)

    def _unused(self, keys: Keys, verdict: Verdict | None) -> list[Effect]:
        """An answer for a delivery that was removed: a claim without an entry is released."""
        is_claimed = verdict in (Verdict.NEW, Verdict.MINE)
        return [self._release(keys)] if is_claimed and not any(key in self._entries for key in keys) else []

    def _new(self, unsettled: _Unsettled, now: float) -> list[Effect]:
        unsettled.ask_at = math.inf
        entry = unsettled.entry = _Entry(unsettled, _Phase.WAITING, now)
        self._entries.update(dict.fromkeys(entry.keys, entry))
        if self._may_pass(entry):
            self._pass(entry, now)
        else:
            bisect.insort(self._waiting, entry, key=lambda each: each.order)
        return []

    def _joined(self, entry: _Entry, unsettled: _Unsettled, now: float) -> list[Effect]:
        if unsettled.entry is not None:
            return []
        unsettled.entry = entry
        unsettled.ask_at = math.inf
        entry.keys.update(unsettled.delivery.keys)
        self._entries.update(dict.fromkeys(unsettled.delivery.keys, entry))
        delivery = unsettled.delivery
        for each in [each for each in entry.copies if delivery.is_redelivery_of(each.delivery)]:
            entry.copies.remove(each)
            self._forget(each)
        current = entry.current
        if delivery.is_redelivery_of(current.delivery):
            if entry.phase is not _Phase.HANDED:
                entry.current = unsettled
                unsettled.order, unsettled.rank = current.order, current.rank
                self._forget(current)
                return []
            current.is_lost, current.renew_at = True, math.inf
        unsettled.rank = current.rank
        entry.copies.append(unsettled)
        if entry.phase is _Phase.WAITING and delivery.side == self._leader:
            entry.copies.remove(unsettled)
            entry.copies.append(current)
            entry.current = unsettled
            entry.order = (unsettled.rank, unsettled.order)
            self._waiting.sort(key=lambda each: each.order)
            if self._may_pass(entry):
                self._waiting.remove(entry)
                self._pass(entry, now)
        return []

    def _let_pass(self, now: float) -> list[Effect]:
        """Messages that waited long enough for the leading namespace, or for one that no longer leads, are ready."""
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
        # A delivery about which the list is asked again precedes it: another receiver may have that message. So does any that waits for such a one.
        return not any(
            each.entry is None and not each.is_overdue and _is_before(each, entry.current)
            for each in self._unsettled.values()
        ) and not any(_is_before(each.current, entry.current) for each in self._waiting)

    def _pass(self, entry: _Entry, now: float) -> None:
        entry.phase, entry.since = _Phase.READY, now
        self._ready.append(entry)

    def _since(self, entry: _Entry) -> float:
        """The time from which its locks are renewed; a session's lock is renewed anyway while the application takes messages."""
        if entry.phase is _Phase.HANDED or not self._keeps_order:
            return entry.since
        return max(entry.since, self._taken_at)

    def _not_handed(self) -> list[_Entry]:
        return [*self._ready, *self._waiting]

    def _give_up(self, entry: _Entry) -> Iterable[Effect]:
        """It was not handled for too long: it is given back, and another receiver may get it."""
        yield self._released(entry)
        for unsettled in (entry.current, *entry.copies):
            if (
                self._keeps_order
                and entry.phase is _Phase.HANDED
                and unsettled is entry.current
                and not unsettled.is_lost
            ):
                unsettled.entry, unsettled.is_overdue = (
                    None,
                    True,
                )  # it can be settled as long as the session's lock is renewed
                continue
            self._forget(unsettled)
            if not unsettled.is_lost and not (entry.phase is _Phase.HANDED and unsettled is entry.current):
                yield Settle(unsettled.delivery.number, unsettled.delivery.side, Action.GIVE_BACK)

    @property
    def _leader(self) -> str | None:
        return next((side for side in self._sides if side in self._open), None)

    def _of(self, side: str) -> list[_Unsettled]:
        """The deliveries that belong to the link to a namespace."""
        return [each for each in self._unsettled.values() if each.delivery.side == side and not each.is_fetched]

    def _forget(self, unsettled: _Unsettled) -> None:
        self._unsettled.pop(unsettled.delivery.number, None)

    def _is_stale(self, keys: Keys, question: int) -> bool:
        """Whether an answer may be older than the finishing of the message (M6)."""
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
