"""The passages of messages through a task, as the audit follows them.

What it is: one origin's messages and the one or more routes that they take to one target, and the reading of what waits at those
routes. What it is not: the reading of targets (`isthmus.replication.verification.audit.audit`).

Invariants:
    I1. Routes are read in the order in which a message passes them, so that a message that moves meanwhile is found further on.
    I2. A number counts for an origin only if the message entered there: at the first route, a message that came from no other origin of
        the task, further on, a copy that names the origin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from isthmus.connectors.servicebus.head import pages, peeked_message
from isthmus.connectors.servicebus.message.sequence import broker_times_of
from isthmus.connectors.system import KnowsRemoved
from isthmus.errors import EntityNotFoundError, IsthmusError, NotAllowedError
from isthmus.replication.canary_mark import is_canary
from isthmus.replication.verification.audit.diverted import diverted_from, sources_of
from isthmus.replication.verification.identity import Identity
from isthmus.replication.verification.reconciliation.reconcile import Undelivered
from isthmus.topology.model import Endpoint, Route

__all__ = [
    "DEAD_LETTER",
    "DRIFT_MS",
    "DivertTargetUnreadableError",
    "LogReader",
    "PAGE_MESSAGES",
    "Passage",
    "Peek",
    "PeekOpener",
    "SourceReader",
    "messages",
]

Peek = Callable[[int, int], Sequence[bytes]]
"""Reads encoded messages from a sequence number on, up to a count; empty at the end."""

PeekOpener = Callable[[Endpoint], Peek]
"""Opens an entity for browsing; EntityNotFoundError where there is none."""

Read = Callable[[bytes], Identity]


class DivertTargetUnreadableError(IsthmusError):
    """The entity that steps divert to cannot be read, e.g. because its namespace is unavailable."""

    code = "divert-target-unreadable"
    retryable = True


class LogReader(Protocol):
    """Reads what waits at routes whose source is a log."""

    def waiting(self, route: Route) -> Peek:
        """The records that the route's group has not committed.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        ...

    def is_placed(self, route: Route) -> bool:
        """Whether the position of the route's group is known.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        ...

    def set_aside(self, route: Route) -> Iterator[Identity]:
        """The records that were set aside.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        ...


class SpoolsReader(Protocol):
    """Reads what is in the spools of routes (`isthmus.replication.shuffle.contents`)."""

    def waiting(self, route: str) -> Iterator[bytes]:
        """Messages that wait there."""
        ...

    def set_aside(self, route: str) -> Iterator[bytes]:
        """Messages that were set aside there."""
        ...


DEAD_LETTER = "/$DeadLetterQueue"
TRANSFER_DEAD_LETTER = "/$Transfer/$DeadLetterQueue"
EXPIRED = "TTLExpiredException"
# A page of 1 KiB messages is well below the service's limit for one answer.
PAGE_MESSAGES = 250
# How far the clocks of namespaces and of this machine may differ.
DRIFT_MS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One origin's messages and the routes that they take to one target.

    Attributes:
        origin: the audit's label of the origin.
        member: the audit's label of the target.
        routes: in the order in which a message passes them; none: the namespace itself forwards the messages.
        is_witnessed: whether what entered the origin can be read there.
        is_consumed: for an origin that is not witnessed: whether what is missing may have been consumed, there or at the target.
        is_filtered: whether only some messages of the origin take this passage.
        filter: which of them do, as SQL; empty: all, not known, or messages that take no other passage.
        expires_ms: the longest time to live of copies at the target; 0: that of their originals.
        changes: whether contents change on the way.
        drops: whether steps may complete messages without passing them on.
        by_content: whether the origin's record identifies messages by their content (`Recorded`).
        keeps_numbers: whether messages have the numbers of the origin at the target, and no provenance, as in a table.
        forwards: the queue that forwards to the source of the first route; None: messages enter that source itself.
        diverts: the entities to which steps of the routes divert messages.
        divert_detection_ms: how long duplicate detection there remembers messages; 0: not known, or not at all.
    """

    origin: str
    member: str
    routes: tuple[Route, ...]
    is_witnessed: bool = True
    is_consumed: bool = False
    is_filtered: bool = False
    filter: str = ""
    expires_ms: int = 0
    changes: bool = False
    drops: bool = False
    by_content: bool = False
    keeps_numbers: bool = False
    forwards: Endpoint | None = None
    diverts: tuple[Endpoint, ...] = ()
    divert_detection_ms: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        """Origin and member."""
        return self.origin, self.member

    def takes(self, depth: int, identity: Identity) -> bool:
        """Whether a message that waits at the route of this index entered at its origin."""
        return identity.origin == ("" if depth == 0 else self.origin)


EnteredSince = Callable[[Passage], Callable[[int], int]]
"""For a passage, a function that gives the earliest time at which the message of a number can have entered its origin."""


class SourceReader:
    """Reads what waits at routes.

    Args:
        passages: all passages that are audited together.
        open_peek: opens an entity for browsing.
        read: a message's identity.
        logs: reads what waits at routes whose source is a log; None: there are none.
        spools: reads what is in the spools of routes; None: no route has any.
        on_waiting: called for each message that waits in a passage, with origin and member, the message and its identity.
        on_time: called for each message that waits, or was set aside, with its origin, its number and the wall time at which it was enqueued there; 0 where it
            does not say.
        read_diverted: the identity of a message in an entity that steps divert to; None: as `read`.

    Attributes:
        found: by origin and member, what was read.
        unknown: what cannot be determined: the position of a group, and what was removed from logs before routes read it, so that nothing else shows it.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        open_peek: PeekOpener,
        read: Read,
        logs: LogReader | None = None,
        spools: SpoolsReader | None = None,
        on_waiting: Callable[[tuple[str, str], bytes, Identity], None] = lambda pair, message, identity: None,
        on_time: Callable[[str, int, int], None] | None = None,
        read_diverted: Read | None = None,
    ) -> None:
        self._on_waiting = on_waiting
        self._on_time = on_time
        self.unknown: list[str] = []
        self._spools = spools
        self._passages = passages
        self.found = {passage.pair: Undelivered() for passage in passages}
        self._open = open_peek
        self._logs = logs
        self._read = read
        self._read_diverted = read_diverted or read
        # Several routes may read one log, each by a group of its own.
        self._stages: list[dict[tuple[Endpoint, str], list[Passage]]] = []
        for depth in range(max((len(each.routes) for each in passages), default=0)):
            stage: dict[tuple[Endpoint, str], list[Passage]] = defaultdict(list)
            for each in passages:
                if depth < len(each.routes):
                    route = each.routes[depth]
                    stage[route.source, route.options.log.group].append(each)
            self._stages.append(stage)

    def read_waiting(self, began_ms: int, entered_since: EnteredSince | None = None) -> None:
        """Note what waits at the routes, and what steps had diverted by then from origins whose messages are not retained: it has entered.

        Args:
            began_ms: wall time at which the audit began.
            entered_since: as for `read_diverted`; None: nothing is diverted.

        Raises:
            EntityNotFoundError: a route's source does not exist.
            IsthmusError: a namespace cannot be read.
        """
        if entered_since is not None and not all(each.is_witnessed for each in self._passages):
            self.read_diverted(entered_since)
        for depth, stage in enumerate(self._stages):
            for (source, group), passages in stage.items():
                if passages[0].by_content:
                    continue  # its queues cannot be browsed
                is_log = bool(group)
                route = passages[0].routes[depth]
                # A message goes from the subscription into the mailbox, and from the source into the spools: each of the latter is read after the former.
                in_feed = self._in_feed(source, route)
                if is_log and self._logs and not self._logs.is_placed(route):
                    self.unknown.append(
                        f"the position of route {route.name} in {source} is not known: group {group} has no offsets, or its checkpoints cannot be "
                        "read here, so that lost messages would count as waiting"
                    )
                peek = self._logs.waiting(route) if is_log and self._logs else self._open(source)
                log: object = peek
                if isinstance(log, KnowsRemoved):
                    self.unknown += [
                        f"partition {number} of {source}: the records from {first:,} to {begin - 1:,} were removed before {route.name} had moved them"
                        for number, (first, begin) in sorted(log.removed.items())
                    ]
                in_spools = self._in_spools(passages, depth)
                for message, identity in chain(in_feed, messages(peek, 0, self._read), in_spools):
                    over = 0 < peeked_message(message).expires_at_ms < began_ms - DRIFT_MS
                    # A copy that waits at a first route passed the filter because the rule was changed.
                    for each in passages:
                        if each.takes(depth, identity):
                            at = self.found[each.pair]
                            (at.expired if over else at.waiting).add(identity.number)
                            self._on_waiting(each.pair, message, identity)
                            self._report_time(each.origin, message, identity)

    def read_set_aside(self) -> None:
        """Note what was dead-lettered at the routes.

        Raises:
            IsthmusError: a namespace cannot be read.
        """
        for depth, stage in enumerate(self._stages):
            for (source, _), passages in stage.items():
                known = {each.origin for each in passages}
                for message, identity in self._set_aside(source, passages[0].routes[depth]):
                    for each in passages:
                        # A message that reached a first route by an unknown path is set aside there all the same.
                        if each.takes(depth, identity) or (depth == 0 and identity.origin not in known):
                            at = self.found[each.pair]
                            (at.expired if identity.reason == EXPIRED else at.dead_lettered).add(identity.number)
                        if each.takes(depth, identity):
                            self._report_time(each.origin, message, identity)
        # What a queue could not forward is missing at all targets among which it is divided, and is reported once.
        for end, each in {each.forwards: each for each in reversed(self._passages)}.items():
            for message, identity in self._dead(end) if end is not None else ():
                if each.takes(0, identity):
                    self.found[each.pair].dead_lettered.add(identity.number)
                    self._report_time(each.origin, message, identity)

    def _report_time(self, origin: str, message: bytes, identity: Identity) -> None:
        if self._on_time is not None and message:
            at_ms = identity.entered_ms if identity.origin else broker_times_of(message)[0]
            self._on_time(origin, identity.number, at_ms)

    def read_diverted(self, entered_since: EnteredSince) -> None:
        """Note what steps have diverted.

        Args:
            entered_since: the earliest time at which the message of a number can have entered: what was diverted before was another message.

        Raises:
            IsthmusError: a namespace cannot be read.
        """
        for end in dict.fromkeys(end for each in self._passages for end in each.diverts):
            passages = [
                (each, entered_since(each), sources_of(each.routes)) for each in self._passages if end in each.diverts
            ]
            try:
                for message, identity in messages(self._open(end), 0, self._read_diverted):
                    of_origin = [each for each in passages if each[0].origin == identity.origin]
                    by = diverted_from(message) if len(of_origin) > 1 else ""
                    is_named = any(by in sources for _, _, sources in of_origin)
                    for each, earliest, sources in of_origin:
                        if identity.entered_ms >= earliest(identity.number) - DRIFT_MS:
                            at = self.found[each.pair]
                            is_others = is_named and each.divert_detection_ms and by not in sources
                            (at.dropped if is_others else at.diverted).add(identity.number)
                            self._report_time(each.origin, message, identity)
            except (EntityNotFoundError, NotAllowedError) as error:
                if end.entity.endswith(DEAD_LETTER):
                    continue  # reported for the entity itself
                why = "there is no such entity" if isinstance(error, EntityNotFoundError) else "it may not be read"
                text = f"the messages that steps divert to {end} are not known: {why}"
                self.unknown += [text] if text not in self.unknown else []
            except IsthmusError as error:
                raise DivertTargetUnreadableError(
                    f"the messages that steps divert to {end} cannot be read: {error}"
                ) from error
        for at in self.found.values():  # the entity may keep one of each route
            at.dropped -= at.diverted

    def _in_feed(self, source: Endpoint, route: Route) -> Iterator[tuple[bytes, Identity]]:
        """What the subscription before a mailbox has not yet forwarded."""
        if not route.options.feed:
            return
        try:
            yield from messages(self._open(Endpoint(source.alias, route.options.feed)), 0, self._read)
        except NotAllowedError:
            return  # a service may not allow browsing of an entity that forwards

    def _in_spools(self, passages: Sequence[Passage], depth: int) -> Iterator[tuple[bytes, Identity]]:
        if self._spools is None:
            return
        for name in dict.fromkeys(each.routes[depth].name for each in passages):
            for message in self._spools.waiting(name):
                if not is_canary(message):
                    yield message, self._read(message)

    def _set_aside(self, source: Endpoint, route: Route) -> Iterator[tuple[bytes, Identity]]:
        """Each message and its identity; no bytes where a log provides only the identity."""
        for message in self._spools.set_aside(route.name) if self._spools is not None else ():
            yield message, self._read(message)
        if route.options.plain.reads:
            return
        if route.options.log.group:
            for identity in self._logs.set_aside(route) if self._logs is not None else ():
                yield b"", identity
            return
        # What a mailbox did not take, or could not take because it was deleted, is in the dead-letter queue of the subscription before it.
        if route.options.feed:
            yield from self._dead(Endpoint(source.alias, route.options.feed))
        yield from self._dead(source, (DEAD_LETTER,))

    def _dead(
        self, end: Endpoint, queues: Sequence[str] = (DEAD_LETTER, TRANSFER_DEAD_LETTER)
    ) -> Iterator[tuple[bytes, Identity]]:
        """Dead letters of an entity; of one that forwards also those that it could not forward."""
        for each in queues:
            with suppress(EntityNotFoundError):
                yield from messages(self._open(Endpoint(end.alias, end.entity + each)), 0, self._read)


def messages(peek: Peek, from_sequence: int, read: Read) -> Iterator[tuple[bytes, Identity]]:
    """All that is in an entity from a sequence number on when the reading begins, but for canaries.

    Raises:
        IsthmusError: the namespace cannot be read.
    """
    for page in pages(peek, PAGE_MESSAGES, from_sequence):
        for message in page:
            if not is_canary(message):
                yield message, read(message)
