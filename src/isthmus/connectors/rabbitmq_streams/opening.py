"""The start of reading a stream, and the check that the stream is the one that was read before.

What it is: the decision, pure. What it is not: the requests to the broker (`source`). Specification: RabbitMQ documentation, "Streams and
Superstreams" (consuming, retention).

For an offset after the end of a stream RabbitMQ delivers nothing and reports no error, and for a removed offset it begins with the first
existing message. Reading therefore begins with the last settled message, whose digest
is in the checkpoint, and the received message is compared.

Invariants:
    I1. A stream that was deleted and created again is not read as the previous one, as far as its end or the last settled message show it.
    I2. A stream without received messages does not count as empty if messages of it were read before.
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
        seen: the evidence.
        checkpoints: the folder of checkpoints.
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
    """The start of reading.

    Attributes:
        ask: the offset to request.
        begin: the first offset to deliver.
        digest: of the message at `ask`, which was settled; empty: unknown.
        is_known: whether the route covers all offsets from `begin` on: missing ones are lost.
        first: the checkpoint to write before; None: none.
        missing: ranges of offsets to check for removal: the first, and the one after the last; None: all that the
            reader still has to receive.
    """

    ask: int
    begin: int
    digest: str = ""
    is_known: bool = False
    first: Checkpoint | None = None
    missing: Sequence[tuple[int, int]] | None = None

    def lost_before(self, offset: int, awaited: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The offsets that the retention has removed if the first message is this one: ranges, each as its first offset and the one after its
        last. Retention removes the oldest messages: if the message at `ask` exists, no later one was removed.

        Args:
            offset: the received offset.
            awaited: the ranges before it that the reader still has to receive.
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
    """Decides the start of reading.

    Args:
        stream: its name.
        folder: the folder of checkpoints.
        last: offset of the last message of the stream; -1: none arrived.
        last_digest: its digest.
        kept: the checkpoint.
        reached: where this reader continues; -1: it has read nothing.
        start: where to begin without a checkpoint.
        reached_digest: of the message before `reached`; empty: unknown.

    Raises:
        StreamMadeAgainError: the stream is not the one that was read.
        ConnectionLostError: no message of it arrived, which is no evidence.
    """
    known = max(kept.sequence if kept is not None else -1, reached - 1)
    if known >= 0 and last < 0:
        raise ConnectionLostError(
            f"stream '{stream}' returns nothing, although it was read up to offset {known}; it is not ready yet, or was created again and is empty"
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
    """The error where the message at an offset has changed; `folder` is that of the checkpoints."""
    seen = f"the message at offset {offset} differs from the one that was read"
    return StreamMadeAgainError("", stream=stream, seen=seen, checkpoints=folder)


def removed(stream: str, ranges: Sequence[tuple[int, int]]) -> ConnectionLostError:
    """The error for messages that were removed unread: ranges from a first to the one before another."""
    listed = ", ".join(f"{first} to {stop - 1}" for first, stop in ranges)
    return ConnectionLostError(
        f"stream '{stream}': offsets {listed} were removed by the retention before they were read, and are lost; reading continues at {ranges[-1][1]}"
    )


def explained(error: IsthmusError) -> IsthmusError:
    """Adds a hint to RabbitMQ's unspecific error about a batch that it cannot deliver."""
    if isinstance(error, ClosedByBrokerError) and error.reply_code == INTERNAL_ERROR:
        hint = "the cause may be a compressed sub-entry batch, which AMQP 0-9-1 cannot transfer; see the broker's log"
        return ConnectionLostError(f"{error}; {hint}")
    return error
