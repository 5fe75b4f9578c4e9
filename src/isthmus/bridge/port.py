"""The interface of a connector, with which the bridge reads from a system or writes to it.

What it is: the ports of a connector, in three parts. A `Connector` names a kind and makes pools. A pool owns the connections of
one process to the systems of its kind, which all routes of the process share, and their sockets. A `Source` or a `Target` is one
route's end of such a connection. Calls never block: an operation that takes time is started, and `poll` returns its result. What it
is not: any system; nothing here knows AMQP links, partitions or clients.

The host of a process (`isthmus.bridge.host`) has one loop:
    1. it polls the descriptors of its pools, until the earliest deadline;
    2. `service` reads and writes the sockets, and returns the ends with new events;
    3. `poll` of those ends gives events, in their order, which the route's machine turns into effects;
    4. effects are carried out on the ends; `flush` writes the bytes that they queued.

Messages. A payload is one encoded AMQP 1.0 message (OASIS AMQP 1.0 part 3), for every system. A position is the source's number of a
message: unique within a route while the message is not settled, ascending in the source's order of delivery where it has an
order. A source of several partitions puts the partition into the bits from `PARTITION_SHIFT` on.

Invariants:
    I1. A source reports each delivered position once; a position comes again only when its message is delivered again.
    I2. A source that has lost its connection can still settle its deliveries, once it is open again, for as long as the system
        allows it; messages that the system delivers again instead are reported by `Arrived` again.
    I3. After `close` an end reports nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Progressed, Send, Stopped
from isthmus.bridge.refusal import Refusal

__all__ = [
    "PARTITION_SHIFT",
    "Arrived",
    "Blocked",
    "Capabilities",
    "Connector",
    "Copies",
    "Drained",
    "Exhausted",
    "Noted",
    "Pool",
    "Source",
    "SourceEvent",
    "SourceLost",
    "SourceOpened",
    "SourcePool",
    "Target",
    "TargetEvent",
    "TargetPool",
]

PARTITION_SHIFT = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of a kind, for lint, plan and the engine.

    Attributes:
        reads: whether it can be a source.
        writes: whether it can be a target.
        is_log: whether messages stay after they are settled, and settling moves an offset.
        dispositions: the dispositions at the source besides `complete`.
        reports_backlog: whether it can report how many messages wait.
        keeps_positions: whether a message has the same position in each process that reads it.
    """

    reads: bool = True
    writes: bool = True
    is_log: bool = False
    dispositions: frozenset[str] = frozenset({"dead-letter", "defer", "abandon"})
    reports_backlog: bool = True
    keeps_positions: bool = True


# ---- events of a source


class SourceOpened(NamedTuple):
    """The source is connected. `identity` is that of its namespace or cluster, empty where it has none. `keeps_times`: its messages have the
    enqueued time of another entity, as dead letters do, so that a later position may have an earlier time.
    """

    identity: str = ""
    keeps_times: bool = False


class Arrived(NamedTuple):
    """Messages, in the order of the source."""

    positions: Sequence[int]
    payloads: Sequence[bytes]


class Drained(NamedTuple):
    """The answer to `drain`: nothing more comes before the next `grant`."""


class Blocked(NamedTuple):
    """An ordered source waits for an earlier message that another receiver has locked; position 0: it no longer waits."""

    position: int


class Exhausted(NamedTuple):
    """All messages that were at the source when it was opened with `only_present` have been delivered."""


class SourceLost(NamedTuple):
    """The connection is lost or could not be made. `is_fatal`: waiting does not help, e.g. there is no such entity. `voids_end`: messages may be
    delivered again, and `Exhausted` is reported again after them.
    """

    text: str
    is_fatal: bool = False
    voids_end: bool = False


class Noted(NamedTuple):
    """A note for the operator about something that delays no message; empty: it no longer applies."""

    text: str


SourceEvent = SourceOpened | Arrived | Drained | Blocked | Exhausted | Noted | SourceLost


class Source(Protocol):
    """One route's source."""

    @property
    def clock_offset_ms(self) -> int | None:
        """The wall time of the source's system minus monotonic time, in ms; None where it is not known."""
        ...

    def open(self) -> None:
        """Begins to connect; `SourceOpened` or `SourceLost` answers. After `SourceLost` it may be called again."""
        ...

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call; also does work that is due by now (monotonic seconds), e.g. renews locks."""
        ...

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket events; infinite where nothing is due."""
        ...

    def grant(self, credit: int) -> None:
        """Sets the credit: the source may deliver so many messages more, counted from now."""
        ...

    def drain(self) -> None:
        """Takes the credit back; messages in transit still come, then `Drained`."""
        ...

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles the delivered positions from first to last; None completes them. Positions that were not delivered, or are
        settled already, are ignored.
        """
        ...

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions: they are delivered again, here or elsewhere, as soon as the system can."""
        ...

    def close(self) -> None:
        """Ends it. Delivered and unsettled messages are delivered again by the system's own rules."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether, after `close`, another source of the same entity may open, here or elsewhere, without reading settled messages."""
        ...


# ---- events of a target: those of the delivery machine


TargetEvent = Opened | Granted | Progressed | Stopped | Outcome | Lost


class Copies(NamedTuple):
    """Messages made ready for a target: `rows` are the indexes of `payloads` in the input, None where none is missing;
    `disposed` are the others, by index, with their disposition at the source. `is_alone`: the target would treat some of them
    differently in one envelope, e.g. as their keys place them.
    """

    payloads: Sequence[bytes]
    disposed: Sequence[tuple[int, Disposition]] = ()
    rows: Sequence[int] | None = None
    is_alone: bool = False


class Target(Protocol):
    """One route's target."""

    def open(self) -> None:
        """Begins to connect; `Opened` or `Lost` answers. After `Lost` it may be called again."""
        ...

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call, for the delivery machine."""
        ...

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket events; infinite where nothing is due."""
        ...

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages for this target, in order; called only after the first `Opened`.

        Args:
            data: encoded messages, concatenated.
            offsets: where each starts, and where the last ends.
            now_ms: wall time of the source's system.
        """
        ...

    def send(self, send: Send) -> None:
        """Queues deliveries; ordinals of outcomes count them from 0 in each connection."""
        ...

    def close(self) -> None:
        """Ends it, without waiting for outcomes."""
        ...


# ---- pools


class Pool(Protocol):
    """The connections of one process to the systems of one kind; keys are the caller's and name ends."""

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """What to poll: (descriptor, events of select.poll)."""
        ...

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready; infinite where nothing is due."""
        ...

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; returns the keys of the ends with new events."""
        ...

    def flush(self) -> None:
        """Writes queued bytes, as far as the sockets take them."""
        ...

    def close(self) -> None:
        """Closes everything."""
        ...


class SourcePool(Pool, Protocol):
    """A pool of sources."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Args:
            key: returned by `service` for it.
            options: the connector's options for a source.
            ordered: whether it has to wait for earlier messages that another receiver has locked.
            only_present: deliver only the messages that are at the source now, then report `Exhausted`.

        Raises:
            ConfigError: an option is invalid.
        """
        ...


class TargetPool(Pool, Protocol):
    """A pool of targets."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Args:
            key: returned by `service` for it.
            options: the connector's options for a target.
            origin_identity: of the namespace that the messages come from, from its source; empty where it is unknown.

        Raises:
            ConfigError: an option is invalid.
        """
        ...


class Connector(Protocol):
    """A kind of system; found by `isthmus.bridge.registry`."""

    kind: str
    capabilities: Capabilities

    def sources(self) -> SourcePool:
        """A new pool for this process."""
        ...

    def targets(self) -> TargetPool:
        """A new pool for this process."""
        ...

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal of a message for an error of this kind."""
        ...
