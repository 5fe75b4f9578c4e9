"""Scheduled messages of a partitioned entity: each fragment's as a unit, and all of them or none.

What it is: messages scheduled in several fragments by one call. What it is not: the choice of the fragments (`slot`), or
what a fragment does with a scheduled message (`isthmus.entities.member.schedule`).
Spec: docs/explanation/protocol.md, Sending, Entities.

Invariants:
    I1. Where one fragment fails, the messages that the others have taken are cancelled: their numbers were not returned yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from isthmus.entities.fragment.join import Join
from isthmus.entities.queue.intake import Intake
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import IsthmusError

__all__ = ["cancel", "schedule"]

_M = TypeVar("_M", bound=Intake)


def schedule(
    messages: Sequence[tuple[bytes, int]],
    placed: Mapping[_M, Sequence[int]],
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> list[int]:
    """Schedule messages in their fragments.

    Args:
        messages: (payload, due wall ms) pairs.
        placed: by fragment the positions of the messages that it takes.
        on_durable: called when all are durable.
        on_failed: called when those of one fragment have failed; the others' are cancelled then.

    Returns:
        Their sequence numbers while scheduled.
    """
    for member, indices in placed.items():
        member.examine([messages[at][0] for at in indices])
    sequences = [0] * len(messages)
    taken: dict[_M, list[int]] = {}
    is_durable: set[_M] = set()

    def failed(error: Exception) -> None:
        for each, numbers in taken.items():
            if each in is_durable:
                _withdraw(each, numbers)
        if on_failed is not None:
            on_failed(error)

    def durable(member: _M) -> None:
        is_durable.add(member)
        join.durable()

    join = Join(len(placed), on_durable, failed)
    try:
        for member, indices in placed.items():
            numbers = member.schedule([messages[at] for at in indices], partial(durable, member), join.failed)
            taken[member] = numbers
            for at, number in zip(indices, numbers, strict=True):
                sequences[at] = number
    except BaseException:
        for member, numbers in taken.items():
            _withdraw(member, numbers)
        raise
    return sequences


def cancel(sequences: Mapping[_M, Sequence[int]], on_durable: Callback | None, on_failed: Failure | None) -> None:
    """Drop scheduled messages, given by fragment; each fragment's as a unit."""
    join = Join(len(sequences), on_durable, on_failed)
    for member, part in sequences.items():
        member.cancel_scheduled(part, join.durable, join.failed)


def _withdraw(member: Intake, numbers: Sequence[int]) -> None:
    """Cancel the messages scheduled in a fragment while those in others were not; any that were due meanwhile were
    activated.
    """
    with suppress(IsthmusError):  # its store went down since: the sender knows of a failure, of unknown outcome
        missing = set(member.missing_scheduled(numbers))
        if left := [number for number in numbers if number not in missing]:
            member.cancel_scheduled(left)
