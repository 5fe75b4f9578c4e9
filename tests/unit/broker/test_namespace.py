"""What connections share: the clockwork of the engine under a process that was suspended."""

from __future__ import annotations

from isthmus.entities import QueueDescription


async def test_nothing_is_idle_for_a_time_in_which_the_process_was_suspended(broker):
    """Receivers could not attach while the process was stopped or its loop was blocked: the entity was not idle."""
    broker.engine.create_queue("brief", QueueDescription(auto_delete_on_idle_ms=300_000))
    await broker.namespace.commits.wait_durable()
    broker.namespace.tick_engine()
    broker.clock.advance(3_600_000)
    broker.namespace.tick_engine()
    assert broker.engine.get_queue("brief") is not None


async def test_what_is_unused_while_the_process_runs_is_idle(broker):
    broker.engine.create_queue("brief", QueueDescription(auto_delete_on_idle_ms=300_000))
    await broker.namespace.commits.wait_durable()
    for _ in range(320):
        broker.clock.advance(1_000)
        broker.namespace.tick_engine()
    assert broker.engine.get_queue("brief") is None
