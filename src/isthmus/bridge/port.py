"""What a system has to offer so that the bridge can read from it or write to it.

What it is: the ports of a connector, in three parts. A `Connector` names a kind and makes pools. A pool owns the connections of
one process to the systems of its kind, which all routes of the process share, and their sockets. A `Source` or a `Target` is one
route's end of such a connection. Calls never block: what takes time is started, and its result comes out of `poll`. What it
is not: any system; nothing here knows AMQP links, partitions or clients.

The host of a process (`isthmus.bridge.host`) has one loop:
    1. it polls the descriptors of its pools, until the earliest deadline;
    2. `service` reads and writes the sockets, and says which ends have something to tell;
    3. `poll` of those ends gives events, in their order, which the route's machine turns into effects;
    4. effects are carried out on the ends; `flush` writes what they queued.

Messages. A payload is one encoded AMQP 1.0 message (OASIS AMQP 1.0 part 3), whatever the system. A position is the source's number of
a message: unique within a route while the message is not settled, ascending in the order in which the source gives messages
where it has an order. A source of several partitions puts the partition into the bits from `PARTITION_SHIFT` on.

Invariants:
    I1. A source tells each delivered position once; a position comes again only when its message is delivered again.
    I2. A source that has lost its connection can still settle what it delivered, once it is open again, for as long as the system
        lets it; what the system delivers again instead is told by `Arrived` again.
    I3. After `close` an end tells nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send
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
    """What a kind can do, for lint, plan and the engine.

    Attributes:
        reads: whether it can be a source.
        writes: whether it can be a target.
        is_log: whether messages stay after they are settled, and settling moves an offset.
        dispositions: what a message may become at the source beside `complete`.
        reports_backlog: whether it can be asked how many messages wait.
        keeps_positions: whether a message has the same position in each process that reads it.
    """

    reads: bool = True
    writes: bool = True
    is_log: bool = False
    dispositions: frozenset[str] = frozenset({"dead-letter", "defer", "abandon"})
    reports_backlog: bool = True
    keeps_positions: bool = True


# ---- what a source tells


class SourceOpened(NamedTuple):
    """The source is connected. `identity` is that of its namespace or cluster, empty where it tells none. `keeps_times`: its messages tell
    when another entity took them in, as dead letters do, so that a later position may have an earlier time.
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
    """An ordered source waits for an earlier message that somebody else holds; position 0: it no longer waits."""

    position: int


class Exhausted(NamedTuple):
    """Everything has been delivered that was at the source when it was opened with `only_present`."""


class SourceLost(NamedTuple):
    """The connection is gone or could not be made. `is_fatal`: waiting does not help, e.g. there is no such entity."""

    text: str
    is_fatal: bool = False


class Noted(NamedTuple):
    """Something that an operator should know, and that holds up no message; empty: it is over."""

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
        """What happened since the last call; also does what is due by now (monotonic seconds), e.g. renews locks."""
        ...

    def deadline(self, now: float) -> float:
        """When `poll` has something to do though the sockets are silent; infinite where nothing is due."""
        ...

    def grant(self, credit: int) -> None:
        """Sets the credit: so many messages more, counted from now."""
        ...

    def drain(self) -> None:
        """Takes the credit back; what is on its way still comes, then `Drained`."""
        ...

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles the delivered positions from first to last; None completes them. Positions that were not delivered, or are
        settled, are passed over.
        """
        ...

    def release(self, first: int, last: int) -> None:
        """Gives delivered positions back: they are delivered again, here or elsewhere, as soon as the system can."""
        ...

    def close(self) -> None:
        """Ends it. What was delivered and not settled comes again by the system's own rules."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether, after `close`, another source of the same entity may open, here or elsewhere, without reading what was settled."""
        ...


# ---- what a target tells: the events of the delivery machine


TargetEvent = Opened | Granted | Outcome | Lost


class Copies(NamedTuple):
    """Messages made ready for a target: `rows` are the indexes of `payloads` in what was given, None where none is missing;
    `disposed` are the others, by index, with what becomes of them at their source. `is_alone`: the target would treat some of them
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
        """What happened since the last call, as the delivery machine takes it."""
        ...

    def deadline(self, now: float) -> float:
        """When `poll` has something to do though the sockets are silent; infinite where nothing is due."""
        ...

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target takes them, in order; called only after the first `Opened`.

        Args:
            data: encoded messages, one behind the other.
            offsets: where each starts, and where the last ends.
            now_ms: wall time of the source's system.
        """
        ...

    def send(self, send: Send) -> None:
        """Queues deliveries; ordinals of outcomes count them from 0 in each connection."""
        ...

    def close(self) -> None:
        """Ends it; what has no outcome is not waited for."""
        ...


# ---- pools


class Pool(Protocol):
    """The connections of one process to the systems of one kind; keys are the caller's and name ends."""

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """What to poll: (descriptor, events of select.poll)."""
        ...

    def deadline(self, now: float) -> float:
        """When `service` has something to do though no descriptor is ready; infinite where nothing is due."""
        ...

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; the keys of the ends that have something to tell."""
        ...

    def flush(self) -> None:
        """Writes what is queued, as far as the sockets take it."""
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
            key: what `service` names it by.
            options: the connector's options for a source.
            ordered: whether it has to wait for earlier messages that somebody else holds.
            only_present: give only what is at the source now, then tell `Exhausted`.

        Raises:
            ConfigError: an option is of no use.
        """
        ...


class TargetPool(Pool, Protocol):
    """A pool of targets."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Args:
            key: what `service` names it by.
            options: the connector's options for a target.
            origin_identity: of the namespace that the messages come from, as its source told it; empty where it is not known.

        Raises:
            ConfigError: an option is of no use.
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
        """What an error of this kind means for a message."""
        ...
