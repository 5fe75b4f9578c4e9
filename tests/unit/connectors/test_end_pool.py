"""isthmus.connectors.end_pool: threads wake the loop."""

from __future__ import annotations

import math
import select
import threading
import time

from isthmus.connectors.end_pool import EndPool


def ready(pool: EndPool) -> dict[int, int]:
    poll = select.poll()
    for descriptor, events in pool.descriptors():
        poll.register(descriptor, events)
    return dict(poll.poll(0))


def test_an_end_that_another_thread_marked_is_named_once() -> None:
    """I1."""
    pool = EndPool()
    assert not ready(pool)
    assert pool.deadline(5.0) == math.inf
    threads = [threading.Thread(target=pool.mark, args=(key,)) for key in (1, 2, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = ready(pool)
    assert found
    assert sorted(pool.service(found, 0.0)) == [1, 2]
    assert not ready(pool)
    assert pool.service({}, 0.0) == []
    pool.mark(3)
    pool.unmark(3)
    assert pool.service(ready(pool), 0.0) == []
    pool.close()


def test_a_closed_pool_waits_for_its_threads_and_names_nothing() -> None:
    """I2."""
    pool = EndPool()
    goes_on = threading.Event()
    thread = threading.Thread(target=goes_on.wait)
    thread.start()
    pool.add_leaving(thread)
    threading.Timer(0.01, goes_on.set).start()
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 5
    assert not thread.is_alive()
    pool.mark(1)
    assert pool.descriptors() == []
    assert pool.service({}, 0.0) == ()


def test_a_thread_that_could_not_be_started_is_not_waited_for() -> None:
    pool = EndPool()
    pool.add_leaving(threading.Thread(target=print))
    pool.close()
    assert pool.descriptors() == []
