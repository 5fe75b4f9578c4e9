"""An entity that answers peeks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Long, Symbol
from isthmus.connectors.servicebus.port.peek.query import PeekQuery


class Entity:
    """Messages by sequence number; those of `deferred` do not wait."""

    def __init__(self, sequences: Iterable[int], deferred: Iterable[int] = ()) -> None:
        self.sequences = sorted(sequences)
        self.deferred = set(deferred)
        self.pages = 0
        self.most = 1 << 30  # messages in one reply

    def serve(self, query: PeekQuery[Any]) -> Any:
        while query.wanted is not None:
            self.pages += 1
            start, size = query.wanted
            query.answer([self._message(n) for n in self.sequences if n >= start][: min(size, self.most)])
        return query.result

    def _message(self, sequence: int) -> bytes:
        annotations: dict[Any, Any] = {Symbol("x-opt-sequence-number"): Long(sequence)}
        if sequence in self.deferred:
            annotations[Symbol("x-opt-message-state")] = Int(1)
        return section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(b"x")


@pytest.fixture(name="entity_of")
def _entity_of() -> type[Entity]:
    return Entity
