"""What a source by requests needs of its system.

What it is: the port of `PullSource`, whose calls block, and the error that it tells by. What it is not: a thread.
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
        is_fatal: whether waiting does not help.
    """

    code = "pull-failed"
    retryable = True

    def __init__(self, message: str = "", is_fatal: bool = False) -> None:
        super().__init__(message, is_fatal=is_fatal)
        self.is_fatal = is_fatal


class Lease(NamedTuple):
    """The lock on a message.

    Attributes:
        name: of the message, the same each time that it is given.
        receipt: what settles it; another one each time.
        seconds: how long it lasts from now; 0 where that is not known.
    """

    name: str
    receipt: str
    seconds: float


class Pulled(NamedTuple):
    """A message that was given.

    Attributes:
        lease: the lock on it.
        message: encoded (OASIS AMQP 1.0 part 3).
        deliveries: how often it has been given, this time included.
        enqueued_ms: when it came, by the system's clock; 0 where that is not known.
        unreadable: why it cannot be read; empty where it can. `message` is then what is put where it is set aside.
    """

    lease: Lease
    message: bytes
    deliveries: int = 1
    enqueued_ms: int = 0
    unreadable: str = ""


class Puller(Protocol):
    """A system, as one source uses it; calls block, and several threads make them at once.

    Attributes:
        entity: the source's queue or subscription, for texts.
        batch: messages in one receive at most.
        settle_batch: messages in one settlement at most.
        max_deliveries: one that has been given more often is set aside; 0: none is.
    """

    entity: str
    batch: int
    settle_batch: int
    max_deliveries: int

    @property
    def clock_offset_ms(self) -> int | None:
        """The wall time of the system minus monotonic time; None where it is not known."""
        ...

    def open(self) -> str:
        """Connects, or looks whether the source is there; the identity of its system.

        Raises:
            PullError: it is not.
        """
        ...

    def receive(self, count: int) -> Sequence[Pulled]:
        """So many messages at most; none where there is none now.

        Raises:
            PullError: there is no answer, or it is a refusal.
        """
        ...

    def waiting(self) -> int | None:
        """How many messages are there, those that somebody holds included; None where nobody knows.

        Raises:
            PullError: there is no answer.
        """
        ...

    def complete(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Takes messages out of the system; False for one whose lock is lost, or which is not there.

        Raises:
            PullError: nobody knows.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Gives messages back; as `complete`."""
        ...

    def renew(self, leases: Sequence[Lease]) -> Sequence[Lease | None]:
        """Holds messages longer; None for one whose lock is lost."""
        ...

    def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
        """Puts a message where those go that cannot be moved, and then takes it out; as `complete`."""
        ...

    def interrupt(self) -> None:
        """Ends a receive that waits; nothing more is received until the next `open`. Any thread may call it."""
        ...

    def close(self) -> None:
        """Ends it; requests under way end as soon as they can."""
        ...
