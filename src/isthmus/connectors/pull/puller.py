"""The port between a pulling source and its system.

What it is: the port of `PullSource`, whose calls block, and its error. What it is not: a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from isthmus.bridge.delivery_event import Disposition
from isthmus.errors import IsthmusError

__all__ = ["Lease", "PullError", "Pulled", "Puller"]


class PullError(IsthmusError):
    """A request failed.

    Attributes:
        is_fatal: whether a retry is useless.
    """

    code = "pull-failed"
    retryable = True

    def __init__(self, message: str = "", is_fatal: bool = False) -> None:
        super().__init__(message, is_fatal=is_fatal)
        self.is_fatal = is_fatal


class Lease(NamedTuple):
    """The lock on a message.

    Attributes:
        name: of the message, the same at each delivery.
        receipt: settles the message; different at each delivery.
        seconds: how long it lasts from now; 0 where unknown.
    """

    name: str
    receipt: str
    seconds: float


class Pulled(NamedTuple):
    """A received message.

    Attributes:
        lease: the lock on it.
        message: encoded (OASIS AMQP 1.0 part 3).
        deliveries: how often it was delivered, this delivery included.
        enqueued_ms: when it was enqueued, by the system's clock; 0 where unknown.
        unreadable: why it cannot be read; empty where it can. `message` is then the content to set aside.
    """

    lease: Lease
    message: bytes
    deliveries: int = 1
    enqueued_ms: int = 0
    unreadable: str = ""


class Puller(Protocol):
    """The system of one source; calls block, and several threads make them concurrently.

    Attributes:
        entity: the source's queue or subscription, for texts.
        batch: messages in one receive at most.
        settle_batch: messages in one settlement at most.
        max_deliveries: a message that was delivered more often is set aside; 0: none is.
    """

    entity: str
    batch: int
    settle_batch: int
    max_deliveries: int

    @property
    def clock_offset_ms(self) -> int | None:
        """The wall time of the system minus monotonic time; None where unknown."""
        ...

    def open(self) -> str:
        """Connects, or checks that the entity exists; returns the identity of its system.

        Raises:
            PullError: it does not exist, or cannot be reached.
        """
        ...

    def receive(self, count: int) -> Sequence[Pulled]:
        """Up to `count` messages; empty where there are none now.

        Raises:
            PullError: no answer, or a refusal.
        """
        ...

    def waiting(self) -> int | None:
        """The number of messages, those that receivers have locked included; None where unknown.

        Raises:
            PullError: no answer.
        """
        ...

    def complete(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Deletes messages from the system; False for one whose lock is lost, or which does not exist.

        Raises:
            PullError: the outcome is unknown.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Releases messages; the result is as of `complete`."""
        ...

    def renew(self, leases: Sequence[Lease]) -> Sequence[Lease | None]:
        """Renews locks; None for one that is lost."""
        ...

    def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
        """Sends a message to where messages are set aside, and then deletes it; the result is as of `complete`."""
        ...

    def interrupt(self) -> None:
        """Ends a receive that waits; nothing is received until the next `open`. Any thread may call it."""
        ...

    def close(self) -> None:
        """Closes it; requests in flight end as soon as they can."""
        ...
