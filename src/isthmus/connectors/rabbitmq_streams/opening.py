"""Where reading a stream begins, and how it is known that the stream is the one that was read before.

What it is: the decision, pure. What it is not: the looks at the broker (`source`). Specification: RabbitMQ documentation, "Streams and Superstreams"
(consuming, retention).

RabbitMQ gives nothing and says nothing where it is asked for an offset behind the end of a stream, and begins with the first message there is
where it is asked for one that the retention removed. Reading therefore begins with the last message that was done with, whose digest
stands in the checkpoint, and what comes is compared.

Invariants:
    I1. A stream that was deleted and made again is not read as the one before, as far as the end or the last message that was done with tell.
    I2. A stream of which nothing came is not taken for one that is empty where something of it was read before.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["Opening", "StreamMadeAgainError", "made_again", "opening", "removed"]


class StreamMadeAgainError(IsthmusError):
    """A stream is not the one that was read before.

    Attributes:
        stream: its name.
        seen: what shows it.
        checkpoints: the folder.
    """

    code = "stream-made-again"
    retryable = False

    stream: str
    seen: str
    checkpoints: str

    def text(self) -> str:
        return (
            f"stream '{self.stream}' was made again, or has lost its end: {self.seen}; what the former stream had unread is lost. To read "
            f"this one from where `start` says, remove the route's folder in {self.checkpoints}"
        )


class Opening(NamedTuple):
    """Where to read.

    Attributes:
        ask: the offset to ask for.
        begin: the first offset that is to be delivered.
        digest: of the message at `ask`, which was done with; empty: it is not known.
        is_known: whether all from `begin` on is the route's: what is missing there is lost.
        first: the checkpoint to write before; None: none.
        missing: the offsets of which it is asked whether they were removed: the first, and the one behind the last; None: those from
            `begin` on.
    """

    ask: int
    begin: int
    digest: str = ""
    is_known: bool = False
    first: Checkpoint | None = None
    missing: tuple[int, int] | None = None

    def lost_before(self, offset: int) -> tuple[int, int]:
        """What the retention removed where the first message that comes is this one: the first offset, and the one behind the last. It removes
        what is oldest: where the message at `ask` is there, nothing behind it is removed.
        """
        if not self.is_known or offset <= self.ask:
            return 0, 0
        first, stop = self.missing or (self.begin, offset)
        return first, min(stop, offset)


def opening(
    stream: str, folder: str, last: int, last_digest: str, kept: Checkpoint | None, reached: int, start: str
) -> Opening:
    """Where reading begins.

    Args:
        stream: its name.
        folder: of the checkpoints.
        last: offset of the last message of the stream; -1: none came.
        last_digest: its digest.
        kept: the checkpoint.
        reached: where this reader goes on; -1: it has read nothing.
        start: where to begin without a checkpoint.

    Raises:
        StreamMadeAgainError: it is not the stream that was read.
        ConnectionLostError: nothing of it came, which says nothing.
    """
    known = max(kept.sequence if kept is not None else -1, reached - 1)
    if known >= 0 and last < 0:
        raise ConnectionLostError(
            f"stream '{stream}' gives nothing, though it was read up to offset {known}; it is not ready yet, or was made again and is empty"
        )
    if (kept is not None and kept.sequence > last) or reached - 1 > last:
        seen = f"its last offset is {last}, and it was read up to {known}"
        raise StreamMadeAgainError("", stream=stream, seen=seen, checkpoints=folder)
    if kept is not None:
        begin = reached if reached >= 0 else kept.sequence + 1
        ask = min(begin, kept.sequence) if kept.sequence >= 0 else begin
        return Opening(max(ask, 0), begin, kept.offset if ask == kept.sequence else "", begin > 0)
    if reached >= 0:
        return Opening(max(reached - 1, 0), reached, is_known=True)
    if start == "latest":
        return Opening(max(last, 0), last + 1, last_digest, is_known=last >= 0, first=Checkpoint(last, last_digest))
    return Opening(0, 0)


def made_again(stream: str, offset: int, folder: str) -> StreamMadeAgainError:
    """What is told where the message at an offset is another one; `folder` is that of the checkpoints."""
    seen = f"the message at offset {offset} is another one than the one that was read"
    return StreamMadeAgainError("", stream=stream, seen=seen, checkpoints=folder)


def removed(stream: str, first: int, stop: int) -> ConnectionLostError:
    """What is told of messages that were removed unread, from the first to the one before `stop`."""
    return ConnectionLostError(
        f"stream '{stream}': offsets {first} to {stop - 1} were removed by the retention before they were read, and are lost; reading "
        f"continues at {stop}"
    )
