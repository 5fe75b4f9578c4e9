"""What a target by requests needs of its system.

What it is: the port of `RequestTarget`, whose calls block, and the errors that it tells by. What it is not: a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.errors import IsthmusError

__all__ = ["BusyError", "RequestError", "Requester"]

_NONE = Refusal(RefusalKind.UNKNOWN, "", "the request failed")


class RequestError(IsthmusError):
    """A request failed: nobody knows what became of its messages, or none can be made.

    Attributes:
        refusal: what it means.
        answered: messages that have an answer all the same, by their place in what was sent.
    """

    code = "request-failed"
    retryable = True

    def __init__(self, refusal: Refusal = _NONE, message: str = "") -> None:
        super().__init__(message or str(refusal), refusal=refusal)
        self.refusal = refusal
        self.answered: dict[int, Refusal | None] = {}


class BusyError(IsthmusError):
    """The system takes nothing for now: what was sent is refused, and nothing is sent for so long.

    Attributes:
        refusal: what is told.
        seconds: how long to wait; 0: it did not say.
        answered: messages that have another answer, by their place in what was sent.
    """

    code = "busy"
    retryable = True

    def __init__(self, refusal: Refusal = _NONE, seconds: float = 0.0, message: str = "") -> None:
        super().__init__(message or str(refusal), refusal=refusal, seconds=seconds)
        self.refusal = refusal
        self.seconds = seconds
        self.answered: dict[int, Refusal | None] = {}


class Requester(Protocol):
    """A system, as one target uses it; calls block, and several threads make them at once.

    Attributes:
        entity: the target's queue, topic or address, for texts.
        batch: messages in one request at most.
        batch_bytes: their encoded bytes at most; one alone may have more.
    """

    entity: str
    batch: int
    batch_bytes: int

    def open(self) -> str:
        """Connects, or looks whether the target is there; the identity of its system.

        Raises:
            RequestError: it is not.
        """
        ...

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        """Sends messages, and waits for what becomes of each; None: the system has it.

        Raises:
            BusyError: none of them was taken but those that it names, and none will be for a while.
            RequestError: nobody knows, but of those that it names.
        """
        ...

    def close(self) -> None:
        """Ends it; requests under way end as soon as they can."""
        ...
