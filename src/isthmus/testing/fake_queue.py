"""An entity of a fake broker, in memory.

What it is: messages with sequence numbers, their locks, the outcome of each, and settings for faults. What it is not: the connections
(`isthmus.testing.peer`).

Invariants:
    I1. A message is either waiting, locked by one connection, or settled; `FakeQueue.fates` tells which outcome each got.
"""

from __future__ import annotations

import bisect
import time
from typing import Any

from isthmus.amqp import section
from isthmus.amqp.performative import Modified, Rejected, Released
from isthmus.amqp.types import Long, Symbol, Timestamp

__all__ = ["FakeQueue"]


class FakeQueue:
    """One entity.

    Attributes:
        messages: every message ever accepted, by sequence number, as delivered.
        waiting: sequence numbers that may be delivered, ascending.
        locked: sequence number → connection that has it locked.
        fates: sequence number → `completed`, `abandoned`, `deferred`, `released` or `dead-lettered: REASON`.
        refuse: condition to refuse sends with; None accepts.
        refuse_only: refuse only deliveries that contain one of these; empty: all.
        refuse_state: delivery state to answer refused sends with, instead of rejected for the condition `refuse`.
        refused: deliveries refused so far.
        hold: delay acknowledgements while True.
        lost: sequence numbers whose locks are lost: a renewal that names one renews nothing.
        renewed: sequence numbers whose locks were renewed.
    """

    def __init__(self) -> None:
        self.messages: dict[int, bytes] = {}
        self.waiting: list[int] = []
        self.locked: dict[int, object] = {}
        self.fates: dict[int, str] = {}
        self.refuse: str | None = None
        self.refuse_only: tuple[bytes, ...] = ()
        self.refuse_state: Any = None
        self.refused = 0
        self.hold = False
        self.lost: set[int] = set()
        self.renewed: set[int] = set()

    def put(self, message: bytes) -> int:
        """Stores a message as sent; returns its sequence number."""
        sequence = len(self.messages) + 1
        self.messages[sequence] = _stored(message, sequence)
        self.waiting.append(sequence)
        return sequence

    def give_back(self, sequence: int) -> None:
        """Releases a locked message, which gets its position back."""
        if self.locked.pop(sequence, None) is not None:
            bisect.insort(self.waiting, sequence)

    def settle(self, sequence: int, state: Any) -> None:
        """Notes the outcome of a locked message."""
        if sequence not in self.locked:
            return
        if isinstance(state, Released):
            self.fates[sequence] = "released"
            self.give_back(sequence)
            return
        if isinstance(state, Modified) and not state.undeliverable_here:
            self.fates[sequence] = "abandoned"
            self.give_back(sequence)
            return
        self.locked.pop(sequence)
        if isinstance(state, Modified):
            self.fates[sequence] = "deferred"
        elif isinstance(state, Rejected):
            info = (state.error.info if state.error is not None else None) or {}
            self.fates[sequence] = (
                f"dead-lettered: {info.get(Symbol('DeadLetterReason')) or info.get('DeadLetterReason')}"
            )
        else:
            self.fates[sequence] = "completed"


def _stored(message: bytes, sequence: int) -> bytes:
    sections = section.locate(message)
    annotations: dict[Any, Any] = {
        Symbol("x-opt-sequence-number"): Long(sequence),
        Symbol("x-opt-enqueued-time"): Timestamp(int(time.time() * 1000)),
        Symbol("x-opt-locked-until"): Timestamp(int(time.time() * 1000) + 60_000),
    }
    annotations.update(section.decode_map(message, sections.message_annotations))
    header = section.decode_header(message, sections.header)
    return b"".join(
        (
            section.encode_header(header),
            section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations),
            *(message[start:end] for start, end in sections[3:] if end),
        )
    )
