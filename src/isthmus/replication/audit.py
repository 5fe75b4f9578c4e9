"""An independent reading of a task's namespaces, for reconciliation.

What it is: the order in which a task's entities are looked at (browsed, never locked or settled) so that the answer is
true while messages move, and the collection of nothing but numbers. What it is not: the comparison
(`isthmus.replication.reconcile`), and it asks no route what it has counted.

The order of reading, and why it is sound while routes run:
    1. every member's audited subscription to its end: what entered by then is what must be accounted for;
    2. every route's source: what waits there;
    3. every member's audited subscription again, from where the first reading ended: what moved between 1 and 2;
    4. every route's dead-letter queue: what was set aside between 2 and 4 has left the source before.
    5. for what is missing then, where the target detects duplicates: the subscriptions once more, for the equal that
       the copy was dropped for, which came before it.
A message that entered is at each step either before a route, behind it, or set aside, and it only ever goes forward; so
one that is found nowhere was lost.

Invariants:
    I1. Reading changes nothing: messages are browsed.
    I2. What enters after step 1 ended is ignored, at its origin and as a copy.
    I3. What is found nowhere when its time to live has ended counts as expired: a namespace drops it wherever it stands.
    I4. What the task does not replicate, by its filter or because its publisher marked it, is not missed anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from isthmus.amqp import section
from isthmus.clock import Clock, SystemClock
from isthmus.connectors.servicebus.head import FRAGMENT_BITS, standing
from isthmus.errors import EntityNotFoundError
from isthmus.replication.detection import dropped_by_detection
from isthmus.replication.identity import Identity, Members, identify
from isthmus.replication.reconcile import Holding, Reconciliation, Undelivered, reconcile
from isthmus.topology.model import Endpoint, Route

__all__ = ["DEAD_LETTER", "Peek", "PeekOpener", "Selects", "audit"]

Peek = Callable[[int, int], Sequence[bytes]]
"""Encoded messages from a sequence number on, at most so many; empty at the end."""

PeekOpener = Callable[[Endpoint], Peek]
"""Opens an entity for browsing; EntityNotFoundError where there is none."""

Selects = Callable[[bytes, Identity], bool]
"""Whether a task replicates a message that a publisher sent."""

DEAD_LETTER = "/$DeadLetterQueue"
EXPIRED = "TTLExpiredException"
# A page of 1 KiB messages stays well below the service's limit for one answer.
PAGE_MESSAGES = 250
# How far the clocks of namespaces and of this machine may be apart.
DRIFT_MS = 5000


@dataclass(slots=True)
class _Subscription:
    """An audited subscription while it is read."""

    alias: str
    peek: Peek
    members: Members | None = None
    next_sequences: dict[int, int] = field(default_factory=dict)  # by fragment, of which an ordinary entity has one
    numbers: dict[str, list[int]] = field(default_factory=dict)
    entered: list[int] = field(default_factory=list)
    ends_ms: dict[int, int] = field(default_factory=dict)
    first_pass: bool = True
    selects: Selects | None = None

    def take(self, message: bytes, identity: Identity) -> None:
        if not identity.origin:
            if self.first_pass and (self.selects is None or self.selects(message, identity)):
                self.entered.append(identity.number)
                self.numbers.setdefault(self.alias, []).append(identity.number)
                if section.decode_header(message, section.locate(message).header).ttl_ms:
                    self.ends_ms[identity.number] = standing(message).expires_at_ms
            return
        self.numbers.setdefault(identity.origin, []).append(identity.number)


def audit(
    task: str,
    routes: Sequence[Route],
    subscriptions: Mapping[str, Endpoint],
    open_peek: PeekOpener,
    *,
    on_message: Callable[[str, bytes], None] | None = None,
    detection_ms: Mapping[str, int] | None = None,
    selects: Selects | None = None,
    ordered: bool = True,
    clock: Clock | None = None,
    members: Members | None = None,
) -> Reconciliation:
    """Read a task's namespaces and compare them.

    Args:
        task: the task's name.
        routes: the task's routes.
        subscriptions: by alias, the subscription that holds every message of the member and that nobody consumes.
        open_peek: opens an entity for browsing.
        on_message: is also shown every message of the audited subscriptions, with the member's alias.
        detection_ms: by alias, the history window of the duplicate detection of the member's topic, where it is on.
        selects: which of the messages that publishers sent are replicated; None: all.
        ordered: whether the task promises order.
        clock: tells whose time to live has ended.
        members: as for `identify`.

    Raises:
        EntityNotFoundError: an audited subscription or a route's source does not stand.
        IsthmusError: a namespace cannot be read.
    """
    audited = [
        _Subscription(alias, open_peek(endpoint), members, selects=selects) for alias, endpoint in subscriptions.items()
    ]
    for each in audited:
        _read_on(each, on_message)
    rest = {(route.source.alias, route.target.alias): Undelivered() for route in routes}
    for route in routes:
        waiting = rest[route.source.alias, route.target.alias].waiting
        for identity in _browse(open_peek(route.source), members):
            waiting.add(identity.number)
    for each in audited:
        each.first_pass = False
        _read_on(each, on_message)
    for route in routes:
        _read_set_aside(route, rest[route.source.alias, route.target.alias], open_peek, members)
    entered = {each.alias: each.entered for each in audited}
    horizon = {alias: max(numbers, default=-1) for alias, numbers in entered.items()}
    holdings = {
        each.alias: Holding(
            entered=each.entered,
            arrived={
                origin: [number for number in numbers if number <= horizon.get(origin, -1)]
                for origin, numbers in each.numbers.items()
            },
        )
        for each in audited
    }
    result = reconcile(task, holdings, rest, ordered=ordered)
    if not result.total("lost"):
        return result
    now_ms = (clock or SystemClock()).wall_ms()
    ends_ms = {each.alias: each.ends_ms for each in audited}
    missing: dict[tuple[str, str], set[int]] = {}
    for pair, undelivered in rest.items():
        numbers = set(holdings[pair[0]].entered) - set(holdings[pair[1]].arrived.get(pair[0], ()))
        numbers -= undelivered.waiting | undelivered.expired | undelivered.dead_lettered
        ended = {number for number in numbers if 0 < ends_ms[pair[0]].get(number, 0) <= now_ms + DRIFT_MS}
        undelivered.expired |= ended
        missing[pair] = numbers - ended
    reads = {each.alias: partial(_messages, each.peek, 0, members) for each in audited}
    for pair, numbers in dropped_by_detection(missing, reads, detection_ms or {}).items():
        rest[pair].dropped |= numbers
    return reconcile(task, holdings, rest, ordered=ordered)


def _read_on(subscription: _Subscription, on_message: Callable[[str, bytes], None] | None) -> None:
    take = subscription.take
    known = dict(subscription.next_sequences)
    start = 0 if any(known) else known.get(0, 0)
    for message, identity in _messages(subscription.peek, start, subscription.members):
        fragment = identity.sequence >> FRAGMENT_BITS
        if identity.sequence < known.get(fragment, 0):
            continue
        take(message, identity)
        subscription.next_sequences[fragment] = identity.sequence + 1
        if on_message is not None:
            on_message(subscription.alias, message)


def _browse(peek: Peek, members: Members | None) -> list[Identity]:
    return [identity for _, identity in _messages(peek, 0, members)]


def _read_set_aside(route: Route, undelivered: Undelivered, open_peek: PeekOpener, members: Members | None) -> None:
    try:
        peek = open_peek(Endpoint(route.source.alias, route.source.entity + DEAD_LETTER))
    except EntityNotFoundError:
        return
    for identity in _browse(peek, members):
        kind = undelivered.expired if identity.reason == EXPIRED else undelivered.dead_lettered
        kind.add(identity.number)


def _messages(peek: Peek, from_sequence: int, members: Members | None) -> Iterator[tuple[bytes, Identity]]:
    at = from_sequence
    while page := peek(at, PAGE_MESSAGES):
        for message in page:
            identity = identify(message, members)
            at = max(at, identity.sequence + 1)
            yield message, identity
