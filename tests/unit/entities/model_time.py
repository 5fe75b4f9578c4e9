"""Time in the models: the common functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from isthmus.amqp import section
from isthmus.entities import Engine, Queue

MOST_TICKS = 100


def come_to_rest(engine: Engine, now_ms: int) -> None:
    """Tick until nothing is due any more; an engine that always has more to do is at fault."""
    for _ in range(MOST_TICKS):
        next_ms = engine.tick()
        if next_ms is None or next_ms > now_ms:
            return
    raise AssertionError("tick never comes to rest")


class Mortal(Protocol):
    """A message as a model knows it."""

    expires_ms: int


_M = TypeVar("_M", bound=Mortal)


def ended_by_a_look(queue: Queue, available: Mapping[int, _M], now_ms: int) -> list[_M]:
    """Of messages that had expired when a receiver asked: those that ended by it, for good.

    It reads them in order until it has what it asked for. The service removes those that it reads; a clock that then goes
    back, before what ended it, brings none of them again.
    """
    expired = {number: one for number, one in available.items() if 0 < one.expires_ms <= now_ms}
    here = {_number_of(payload) for payload in queue.peek(0, 10_000)} if expired else set()
    return [one for number, one in expired.items() if number not in here]


def _number_of(payload: Any) -> int:
    annotations = section.decode_map(payload, section.locate(payload).message_annotations)
    return int(next(value for key, value in annotations.items() if str(key) == "x-opt-sequence-number"))
