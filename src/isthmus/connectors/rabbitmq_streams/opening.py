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

from collections.abc import Sequence
from typing import NamedTuple

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.rabbitmq.protocol.error import INTERNAL_ERROR, ClosedByBrokerError
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["Opening", "StreamMadeAgainError", "explained", "made_again", "opening", "removed"]


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
            f"this one from where `start` says, remove the route's folder in {self.checkpoints}; where a node has just started, wait: its "
            "replica may be behind, and the route looks again"
        )


class Opening(NamedTuple):
    """Where to read.

    Attributes:
        ask: the offset to ask for.
        begin: the first offset that is to be delivered.
        digest: of the message at `ask`, which was done with; empty: it is not known.
        is_known: whether all from `begin` on is the route's: what is missing there is lost.
        first: the checkpoint to write before; None: none.
        missing: ranges of offsets of which it is asked whether they were removed: the first, and the one behind the last; None: all that the
            reader still has to get.
    """

    ask: int
    begin: int
    digest: str = ""
    is_known: bool = False
    first: Checkpoint | None = None
    missing: Sequence[tuple[int, int]] | None = None

    def lost_before(self, offset: int, awaited: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """What the retention removed where the first message that comes is this one: ranges, each as its first offset and the one behind its
        last. It removes what is oldest: where the message at `ask` is there, nothing behind it is removed.

        Args:
            offset: that came.
            awaited: what the reader still has to get before it.
        """
        if not self.is_known or offset <= self.ask:
            return []
        ranges = awaited if self.missing is None else self.missing
        return [(first, min(stop, offset)) for first, stop in ranges if first < offset]


def opening(
    stream: str,
    folder: str,
    last: int,
    last_digest: str,
    kept: Checkpoint | None,
    reached: int,
    start: str,
    reached_digest: str = "",
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
        reached_digest: of the message before `reached`; empty: it is not known.

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
    if kept is not None and (kept.sequence >= 0 or reached < 0):
        begin = reached if reached >= 0 else kept.sequence + 1
        ask = min(begin, kept.sequence)
        return Opening(max(ask, 0), begin, kept.offset if ask == kept.sequence >= 0 else "", begin > 0)
    if reached >= 0:
        return Opening(max(reached - 1, 0), reached, reached_digest, is_known=True)
    if start == "latest":
        return Opening(max(last, 0), last + 1, last_digest, is_known=last >= 0, first=Checkpoint(last, last_digest))
    return Opening(0, 0)


def made_again(stream: str, offset: int, folder: str) -> StreamMadeAgainError:
    """What is told where the message at an offset is another one; `folder` is that of the checkpoints."""
    seen = f"the message at offset {offset} is another one than the one that was read"
    return StreamMadeAgainError("", stream=stream, seen=seen, checkpoints=folder)


def removed(stream: str, ranges: Sequence[tuple[int, int]]) -> ConnectionLostError:
    """What is told of messages that were removed unread: ranges from a first to the one before another."""
    told = ", ".join(f"{first} to {stop - 1}" for first, stop in ranges)
    return ConnectionLostError(
        f"stream '{stream}': offsets {told} were removed by the retention before they were read, and are lost; reading continues at {ranges[-1][1]}"
    )


def explained(error: IsthmusError) -> IsthmusError:
    """What RabbitMQ says of a batch that it cannot give is no more than that something failed."""
    if isinstance(error, ClosedByBrokerError) and error.reply_code == INTERNAL_ERROR:
        hint = "so it fails at a compressed sub-entry batch, which AMQP 0-9-1 cannot carry; look at the broker's log"
        return ConnectionLostError(f"{error}; {hint}")
    return error
