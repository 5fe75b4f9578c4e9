"""Time in the models: what all of them do alike."""

from __future__ import annotations

from isthmus.entities import Engine

MOST_TICKS = 100


def come_to_rest(engine: Engine, now_ms: int) -> None:
    """Tick until nothing is due any more; an engine that always has more to do is at fault."""
    for _ in range(MOST_TICKS):
        next_ms = engine.tick()
        if next_ms is None or next_ms > now_ms:
            return
    raise AssertionError("tick never comes to rest")
