"""How consecutive messages become deliveries.

What it is: which messages share an envelope, which are sent alone, and which are too large to be sent. What it is not: the
encoding of an envelope, which is the system's, or the sending (`delivery`).

Invariants:
    I1. An envelope has at least two messages and at most `size`, and is no larger than `envelope_bytes` and the target's limit.
    I2. A message that must be sent alone, or that is too large, is in no envelope.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.bridge.delivery.outbox import Run
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery_event import Send
from isthmus.bridge.index_set import IndexSet

__all__ = ["Packed", "pack", "sends"]


class Packed(NamedTuple):
    """Deliveries as (offset in the run, count of messages); `stop` is the offset after the last message that was considered."""

    deliveries: list[tuple[int, int]]
    too_large: list[int]
    stop: int


def pack(
    run: Run,
    start: int,
    stop: int,
    room: int,
    size: int,
    settings: DeliverySettings,
    message_bytes: int,
    alone: IndexSet,
) -> Packed:
    """The next deliveries of a run.

    Args:
        run: the messages.
        start: offset of the first.
        stop: offset behind the last.
        room: how many deliveries at most.
        size: how many messages in one at most.
        settings: how the route sends; where refusals block, no message after one that is too large is considered.
        message_bytes: the largest message that the target takes; 0 for no limit.
        alone: messages that are sent alone, by index.
    """
    deliveries: list[tuple[int, int]] = []
    too_large: list[int] = []
    while start < stop and len(deliveries) < room:
        if 0 < message_bytes < len(run.payloads[start]):
            too_large.append(start)
            start += 1
            if settings.block_refused:
                break
            continue
        count = _envelope_count(run, start, stop, size, settings, message_bytes, alone)
        deliveries.append((start, count))
        start += count
    return Packed(deliveries, too_large, start)


def sends(run: Run, deliveries: list[tuple[int, int]]) -> list[Send]:
    """The effects that send deliveries of a run, in order; consecutive messages that are sent alone are one effect."""
    found: list[Send] = []
    singles: list[bytes] = []
    for offset, count in deliveries:
        if count == 1:
            singles.append(run.payloads[offset])
            continue
        if singles:
            found.append(Send(singles))
            singles = []
        found.append(Send(run.payloads[offset : offset + count], True))
    return [*found, Send(singles)] if singles else found


def _envelope_count(
    run: Run, start: int, stop: int, most: int, settings: DeliverySettings, message_bytes: int, alone: IndexSet
) -> int:
    """How many messages from `start` on are put into one delivery."""
    if most < 2 or (alone and run.start + start in alone):
        return 1
    limit = min(settings.envelope_bytes, message_bytes or settings.envelope_bytes)
    stop = min(stop, start + most)
    if not alone and sum(map(len, run.payloads[start:stop])) + settings.overhead_bytes * (stop - start) <= limit:
        return stop - start
    size, at = 0, start
    while at < stop:
        size += len(run.payloads[at]) + settings.overhead_bytes
        if size > limit or (alone and run.start + at in alone):
            break
        at += 1
    return max(1, at - start)
