"""What a source may give again after its connection was lost, as far as `test_lease` does not see it."""

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.bridge.lease.settled_memory import RECENT_SECONDS, SettledMemory


def message(enqueued_ms: int = 1_000) -> bytes:
    return section.encode_message(b"x", annotations={"x-opt-enqueued-time": Timestamp(enqueued_ms)})


def test_what_was_completed_before_the_process_was_suspended_is_known_i1() -> None:
    """Its completion may not have been written, and the loss is noticed long after it."""
    memory = SettledMemory()
    memory.opened("ns", 0.0)
    memory.completed(1, 1, 1.0)
    memory.completed(5, 6, 10.0 + RECENT_SECONDS)
    now = 100.0 + 2 * RECENT_SECONDS
    memory.lost(now, {0: 1_000}, [])
    memory.opened("ns", now + 1.0)
    assert memory.is_again(5, message(), now + 2.0)
    assert memory.is_again(6, message(), now + 2.0)
    assert not memory.is_again(6, message(1_001), now + 2.0)
    assert not memory.is_again(1, message(), now + 2.0)
