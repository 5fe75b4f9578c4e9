"""`DurableSender` against a real namespace that is stopped and started."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from harness.client.client_region import Region, eventually, region
from isthmus.client import DurableSender, EntityForbiddenError, OutboxFullError
from isthmus.client.aio import DurableSender as AsyncDurableSender
from isthmus.client.outbox.store import refused, status
from isthmus.errors import InvalidArgumentError

# The SDK leaves the socket of a connection that was lost while it opened to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = """
queues:
  orders: {}
  detecting: {requires_duplicate_detection: true}
  sessions: {requires_session: true}
  closed: {status: SendDisabled}
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Region]:
    with region(CONFIG) as here:
        yield here


@pytest.fixture
def here(served: Region) -> Iterator[Region]:
    served.mend()
    yield served
    served.mend()
    served.drain("orders", "detecting")


def text(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"%d" % number, message_id=str(number))


def bodies(here: Region, entity: str = "orders") -> list[int]:
    return [int(str(message)) for message in here.received(entity)]


def test_what_was_sent_while_the_namespace_was_away_comes_in_order_when_it_is_back(
    here: Region, tmp_path: Path
) -> None:
    here.cut()
    with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
        for number in range(50):
            assert sender.send_messages(text(number)).stored == 1
        assert not sender.flush(0.2)
        eventually(lambda: sender.statistics().drain.failure == "gone")
        here.mend()
        assert sender.flush(60)
        assert sender.statistics().stored == 50
    assert list(dict.fromkeys(bodies(here))) == list(range(50))


def test_what_a_sender_left_is_delivered_by_the_next_before_its_own(here: Region, tmp_path: Path) -> None:
    with DurableSender(here.connection_string, "orders", tmp_path / "box", drain=False) as sender:
        sender.send_messages([text(number) for number in range(10)])
    with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
        sender.send_messages([text(number) for number in range(10, 20)])
        assert sender.flush(60)
    assert bodies(here) == list(range(20))
    found = status(tmp_path / "box")
    assert (found.messages, found.live, found.refused, found.damaged) == (0, 0, 0, 0)


def test_a_lost_acknowledgement_is_suppressed_by_the_stable_message_id(here: Region, tmp_path: Path) -> None:
    with DurableSender(here.connection_string, "detecting", tmp_path / "box", attempt_timeout=1.0) as sender:
        sender.send_messages(ServiceBusMessage(b"0"))
        assert sender.flush(60)
        here.silence()
        sender.send_messages([ServiceBusMessage(b"%d" % number) for number in range(1, 6)])
        eventually(lambda: sender.statistics().drain.retries > 0)
        here.mend()
        assert sender.flush(60)
    assert bodies(here, "detecting") == list(range(6))


def test_a_namespace_that_hangs_blocks_no_sender(here: Region, tmp_path: Path) -> None:
    with DurableSender(here.connection_string, "orders", tmp_path / "box", attempt_timeout=1.0) as sender:
        sender.send_messages(text(0))
        assert sender.flush(60)
        with here.frozen():
            for number in range(1, 20):
                sender.send_messages(text(number))
            assert not sender.is_empty
            eventually(lambda: sender.statistics().drain.failure == "unknown")
        assert sender.flush(60)
    assert set(bodies(here)) == set(range(20))


def test_threads_share_a_sender_and_each_keeps_its_order(here: Region, tmp_path: Path) -> None:
    with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:

        def run(thread: int) -> None:
            for number in range(40):
                sender.send_messages(text(thread * 1000 + number))

        threads = [threading.Thread(target=run, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sender.flush(60)
    found = bodies(here)
    assert len(found) == 240
    for thread in range(6):
        assert [number for number in found if number // 1000 == thread] == [thread * 1000 + n for n in range(40)]


def test_a_message_that_is_too_large_is_refused_at_once_also_while_the_namespace_is_unavailable(
    here: Region, tmp_path: Path
) -> None:
    with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
        sender.send_messages(text(1))
        assert sender.flush(60)
        with pytest.raises(MessageSizeExceededError, match="the limit is"):
            sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))
    here.cut()
    with DurableSender(
        here.connection_string, "orders", tmp_path / "box"
    ) as sender:  # what the link reported is remembered
        sender.send_messages(ServiceBusMessage(b"x" * 500_000))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 2_000_000))
    with (
        DurableSender(here.connection_string, "orders", tmp_path / "new") as sender,
        pytest.raises(MessageSizeExceededError, match="max_message_bytes"),
    ):
        sender.send_messages(ServiceBusMessage(b"x" * 500_000))


def test_a_message_that_is_refused_for_itself_is_set_aside_and_the_others_continue(
    here: Region, tmp_path: Path
) -> None:
    with DurableSender(here.connection_string, "sessions", tmp_path / "box") as sender:
        sender.send_messages([ServiceBusMessage(b"%d" % n, session_id=None if n == 3 else "s") for n in range(6)])
        assert sender.flush(60)
        drain = sender.statistics().drain
        assert (drain.delivered, drain.refused) == (5, 1)
    [(reason, payload)] = refused(sender._store.folder)
    assert "SessionId" in reason
    assert payload.endswith(b"3")


def test_a_wrong_key_is_reported_at_send_and_what_waits_stays(here: Region, tmp_path: Path) -> None:
    wrong = here.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with DurableSender(wrong, "orders", tmp_path / "box") as sender:
        sender.send_messages(text(1))
        eventually(lambda: sender.statistics().drain.failure == "forbidden")
        with pytest.raises(EntityForbiddenError, match="correct the key"):
            sender.send_messages(text(2))
    with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
        assert sender.flush(60)
    assert bodies(here) == [1]


def test_a_disabled_entity_is_waited_for(here: Region, tmp_path: Path) -> None:
    with DurableSender(here.connection_string, "closed", tmp_path / "box") as sender:
        sender.send_messages(text(1))
        eventually(lambda: sender.statistics().drain.failure == "disabled")
        assert sender.send_messages(text(2)).stored == 1


def test_limits_of_size_and_age_are_reported_before_the_disk_is_full(here: Region, tmp_path: Path) -> None:
    here.cut()
    with DurableSender(here.connection_string, "orders", tmp_path / "size", max_bytes=100_000) as sender:
        for _ in range(80):
            sender.send_messages(ServiceBusMessage(b"x" * 1000))
        with pytest.raises(OutboxFullError, match="max_bytes"):
            sender.send_messages([ServiceBusMessage(b"x" * 1000) for _ in range(20)])
        sender.send_messages(ServiceBusMessage(b"x" * 1000))
        assert status(tmp_path / "size").messages == 81
        here.mend()
        assert sender.flush(60)
        time.sleep(0.3)  # the room that it leaves is looked at every quarter of a second
        assert sender.send_messages(text(1)).stored == 1
    here.cut()
    with DurableSender(here.connection_string, "orders", tmp_path / "age", max_age=0.5) as sender:
        sender.send_messages(text(2))

        def is_refused() -> bool:
            try:
                sender.send_messages(text(3))
            except OutboxFullError as error:
                return "max_age" in str(error)
            return False

        eventually(is_refused)
    with (
        DurableSender(here.connection_string, "orders", tmp_path / "free", min_free_bytes=1 << 60) as sender,
        pytest.raises(OutboxFullError, match="min_free_bytes"),
    ):
        sender.send_messages(text(4))


def test_a_folder_is_for_one_entity(here: Region, tmp_path: Path) -> None:
    DurableSender(here.connection_string, "orders", tmp_path / "box", drain=False).close()
    with pytest.raises(InvalidArgumentError, match="is for 'orders'"):
        DurableSender(here.connection_string, "sessions", tmp_path / "box")


def _child(connection: str, path: Path, first: int) -> None:
    with DurableSender(connection, "orders", path) as sender:
        for number in range(first, first + 50):
            sender.send_messages(text(number))
        sender.flush(60)


def test_two_processes_share_an_outbox(here: Region, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=_child, args=(here.connection_string, tmp_path / "box", first)) for first in (0, 1000)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    found = bodies(here)
    assert [number for number in found if number < 1000] == list(range(50))
    assert [number for number in found if number >= 1000] == list(range(1000, 1050))


def _fork(connection: str, path: Path) -> None:
    with DurableSender(connection, "orders", path) as sender:
        sender.send_messages(text(1))
        faulthandler.register(signal.SIGALRM, chain=True)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that waits for a thread that it does not have says where, and ends
            code = 1
            try:
                sender.send_messages(text(2))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sender.send_messages(text(3))
        assert sender.flush(60)
        eventually(lambda: status(path).messages == 0)


def test_a_forked_child_has_a_stream_of_its_own(here: Region, tmp_path: Path) -> None:
    # In a process of its own: what other tests left here, the child's garbage collector would end without their threads.
    parent = multiprocessing.get_context("spawn").Process(target=_fork, args=(here.connection_string, tmp_path / "box"))
    parent.start()
    parent.join(180)
    assert parent.exitcode == 0
    assert sorted(bodies(here)) == [1, 2, 3]


async def test_for_asyncio(here: Region, tmp_path: Path) -> None:
    async with AsyncDurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
        await sender.send_messages([text(number) for number in range(5)])
        assert await sender.flush(60)
        assert sender.statistics().is_empty
    assert bodies(here) == list(range(5))


def test_closing_with_a_timeout_delivers_first(here: Region, tmp_path: Path) -> None:
    sender: Any = DurableSender(here.connection_string, "orders", tmp_path / "box")
    sender.send_messages(text(1))
    began = time.monotonic()
    sender.close(timeout=60)
    assert time.monotonic() - began < 60
    assert bodies(here) == [1]
