"""The port between a target by requests and its system.

What it is: the port of `RequestTarget`, whose calls block, and its errors. What it is not: a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.errors import IsthmusError

__all__ = ["BusyError", "RequestError", "Requester"]

_NONE = Refusal(RefusalKind.UNKNOWN, "", "the request failed")


class RequestError(IsthmusError):
    """A request failed: the outcome of its messages is unknown, or no request can be made.

    Attributes:
        refusal: what it means.
        answered: messages that are answered nevertheless, by their index in the request.
    """

    code = "request-failed"
    retryable = True

    def __init__(self, refusal: Refusal = _NONE, message: str = "") -> None:
        super().__init__(message or str(refusal), refusal=refusal)
        self.refusal = refusal
        self.answered: dict[int, Refusal | None] = {}


class BusyError(IsthmusError):
    """The system accepts nothing for now: the messages are refused, and nothing is sent for so long.

    Attributes:
        refusal: the refusal to report.
        seconds: how long to wait; 0: the system did not say.
        answered: messages that have another answer, by their index in the request.
    """

    code = "busy"
    retryable = True

    def __init__(self, refusal: Refusal = _NONE, seconds: float = 0.0, message: str = "") -> None:
        super().__init__(message or str(refusal), refusal=refusal, seconds=seconds)
        self.refusal = refusal
        self.seconds = seconds
        self.answered: dict[int, Refusal | None] = {}


class Requester(Protocol):
    """The system of one target; calls block, and several threads make them concurrently.

    Attributes:
        entity: the target's queue, topic or address, for texts.
        batch: messages in one request at most.
        batch_bytes: their encoded bytes at most; one alone may have more.
    """

    entity: str
    batch: int
    batch_bytes: int

    def open(self) -> str:
        """Connects, or checks that the target exists; returns the identity of its system.

        Raises:
            RequestError: it does not exist, or cannot be reached.
        """
        ...

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        """Sends messages, and waits for the outcome of each; None: the system has accepted it.

        Raises:
            BusyError: none of them was accepted but those that it names, and none will be for a while.
            RequestError: the outcome is unknown, except for those that it names.
        """
        ...

    def close(self) -> None:
        """Closes it; requests in flight end as soon as they can."""
        ...
