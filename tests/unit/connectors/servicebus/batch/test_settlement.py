"""Receiving a batch, settling it and renewing its locks, against a fake broker."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section, types
from isthmus.connectors.servicebus.batch import consumption
from isthmus.connectors.servicebus.batch import settlement as settlement_module
from isthmus.connectors.servicebus.batch.error import BatchFolderError, BatchOverError, BatchReadInPartError
from isthmus.connectors.servicebus.batch.reader import read_batch
from isthmus.connectors.servicebus.batch.renewal import BatchRenewal
from isthmus.connectors.servicebus.batch.settlement import BatchSettlement
from isthmus.connectors.servicebus.batch.store import BatchStore, Writer
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.testing import peer as peer_module
from isthmus.testing.fake_queue import FakeQueue
from isthmus.testing.peer import Peer

BASE = {"connection": "env:PLACE", "entity": "q", "batch_seconds": "0.02"}


@pytest.fixture(name="peer")
def _peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with Peer("q") as peer:
        connection = (
            f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        monkeypatch.setenv("PLACE", connection)
        yield peer


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[BatchStore]:
    store = BatchStore(tmp_path / "query")
    assert store.claim()
    yield store
    store.close()


@pytest.fixture(name="settlement")
def _settlement(peer: Peer, store: BatchStore) -> Iterator[BatchSettlement]:
    made = BatchSettlement(SourceOptions.read(BASE), store)
    yield made
    made.close()


def put(peer: Peer, *numbers: int, at_ms: int = 0) -> None:
    annotations = {"x-opt-enqueued-time": types.Timestamp(at_ms)} if at_ms else {}
    with peer.lock:
        for number in numbers:
            peer.queues["q"].put(section.encode_message(b"m%d" % number, annotations=annotations))


def read(store: BatchStore, batch: int, *, through: int = 0, **more: str) -> list[int]:
    """Sequence numbers of one whole evaluation."""
    return [number for rows in evaluate(store, batch, through, **more) for number in rows]


def evaluate(store: BatchStore, batch: int, through: int = 0, **more: str) -> Generator[list[int]]:
    options = SourceOptions.read(BASE | more)
    for rows in read_batch(options, BatchStore(store.folder), batch, 0, through):
        yield rows.column("sequence_number").to_pylist()


def outcomes(peer: Peer) -> dict[int, str]:
    with peer.lock:
        return dict(peer.queues["q"].fates)


@pytest.mark.parametrize("mode", ["raw", "decoded"])
def test_a_second_evaluation_reads_the_same_messages(peer: Peer, store: BatchStore, mode: str) -> None:
    put(peer, 1, 2, 3)
    assert read(store, 5, mode=mode) == [1, 2, 3]
    put(peer, 4)
    assert read(store, 5, mode=mode) == [1, 2, 3]
    assert read(store, 6, mode=mode, ordered="false") == [4]


@pytest.mark.parametrize(("rows", "share"), [("10", 2), ("3", 1)])
def test_readers_of_a_batch_share_its_rows(peer: Peer, store: BatchStore, rows: str, share: int) -> None:
    put(peer, *range(1, 21))
    assert len(read(store, 5, ordered="false", partitions="4", batch_rows=rows)) == share


def test_attempts_of_one_task_that_run_at_once_read_the_same_messages(peer: Peer, store: BatchStore) -> None:
    put(peer, *range(1, 101))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: read(store, 5), range(4)))
    assert found == [list(range(1, 101))] * 4
    with peer.lock:
        assert len(peer.queues["q"].locked) == 100


def test_what_spark_committed_is_settled_and_nothing_else_i1(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    put(peer, 1, 2)
    read(store, 5)
    put(peer, 3)
    read(store, 6, ordered="false")
    settlement.settle_through(4)
    assert outcomes(peer) == {}
    settlement.settle_through(5)
    assert outcomes(peer) == {1: "completed", 2: "completed"}
    assert store.listed("index") == [(6, 0)]


def test_a_batch_that_was_left_before_its_end_is_not_settled_i2(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    put(peer, 1, 2)
    evaluation = evaluate(store, 5)
    assert next(evaluation) == [1, 2]
    evaluation.close()
    with pytest.raises(BatchReadInPartError, match=r"batch 5 of 2 messages was read only in part.*persist\(\)"):
        settlement.settle_through(5)
    assert outcomes(peer) == {}
    settlement.settle_through(5)  # logged once: a query that is started again continues


def test_a_batch_that_spark_did_not_take_is_not_settled_i2(
    peer: Peer, store: BatchStore, settlement: BatchSettlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python is done with its rows, and Spark has closed the socket."""
    monkeypatch.setattr(consumption.Consumption, "wait", lambda _: False)
    put(peer, 1)
    assert read(store, 5) == [1]
    with pytest.raises(BatchReadInPartError):
        settlement.settle_through(5)


def test_a_part_and_then_the_whole_is_the_whole(peer: Peer, store: BatchStore, settlement: BatchSettlement) -> None:
    put(peer, 1, 2)
    next(evaluate(store, 5))
    assert read(store, 5) == [1, 2]
    settlement.settle_through(5)
    assert outcomes(peer) == {1: "completed", 2: "completed"}


def test_a_task_that_outlives_its_batch_receives_nothing_and_settles_nothing_i3(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    put(peer, 1)
    read(store, 5)
    settlement.settle_through(5)
    put(peer, 2)
    with pytest.raises(BatchOverError, match="batch 5 is committed"):
        read(store, 5)
    store.set_settled(4)
    read(store, 5)  # it was receiving while the driver settled
    store.set_settled(5)
    settlement.settle_through(5)
    assert outcomes(peer) == {1: "completed"}
    assert store.listed("index") == []


def test_a_restart_settles_what_the_run_before_had_committed(peer: Peer, store: BatchStore) -> None:
    put(peer, 1, 2)
    read(store, 5)
    store.close()  # and nothing more of the first run
    again = BatchStore(store.folder)
    assert again.claim()
    settlement = BatchSettlement(SourceOptions.read(BASE), again)
    settlement.settle_through(5)
    assert outcomes(peer) == {1: "completed", 2: "completed"}
    settlement.close()
    again.close()


def test_no_bodies_are_left_of_a_reader_that_died_and_that_the_repeated_batch_did_not_have(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    put(peer, 1)
    assert read(store, 5) == [1]
    Writer(store, 5, 1).close()
    Writer(store, 6, 1).close()
    settlement.settle_through(5)
    assert store.listed("payloads") == [(6, 1)], "that one is of the next batch"


def test_a_message_whose_lock_was_lost_is_completed_when_it_comes_again_and_becomes_no_row(
    peer: Peer, store: BatchStore, settlement: BatchSettlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement_module, "LATE_QUERY_SECONDS", 0.0)
    put(peer, 1, 2, at_ms=1000)
    assert read(store, 5) == [1, 2]
    lose_locks(peer, monkeypatch, 2)
    settlement.settle_through(5)
    assert outcomes(peer)[1] == "completed"
    assert store.all_late() == {2: 1000}
    put(peer, 3, at_ms=1001)
    assert read(store, 6) == [3]
    peer.wait_for(lambda: peer.queues["q"].fates.get(2) == "completed")
    settlement.settle_through(6)
    assert store.all_late() == {}


@pytest.mark.parametrize(
    ("states", "late", "stays"),
    [
        ((1,), (1,), False),
        ((1, 0), (1, 2), True),
        ((1, 0, 1), (1, 3), False),
        ((0, 1), (2, 3), False),
        ((1,) * 150, tuple(range(1, 151)), False),
        ((0,) * 999, (1000,), False),
        ((0,) * 999, (0, 1000), True),  # too far apart to be looked through
    ],
)
def test_a_deferred_message_is_not_waited_for(
    peer: Peer,
    store: BatchStore,
    settlement: BatchSettlement,
    states: tuple[int, ...],
    late: tuple[int, ...],
    stays: bool,
) -> None:
    with peer.lock:
        for state in states:
            annotations = {"x-opt-message-state": types.Int(state)}
            peer.queues["q"].put(section.encode_message(b"x", annotations=annotations))
    store.add_late(1, 0, [(sequence, 1000) for sequence in late])
    settlement.settle_through(1)
    assert bool(store.all_late()) == stays


def test_an_entity_that_was_made_anew_counts_from_one_again(peer: Peer, store: BatchStore) -> None:
    """Its messages have the numbers of others that were committed, and came at another time."""
    store.add_late(1, 0, [(1, 1000)])
    put(peer, 1, at_ms=2000)
    assert read(store, 5) == [1]


def lose_locks(peer: Peer, monkeypatch: pytest.MonkeyPatch, *lost: int) -> None:
    """As when LockDuration has passed: the messages wait again, and their tokens settle nothing."""
    manage = peer_module._Served._manage

    def refuse(served: Any, queue: FakeQueue, operation: str, body: Any) -> tuple[int, Any]:
        tokens = [int.from_bytes(each.bytes_le[8:], "big") for each in body.get("lock-tokens", ())]
        if operation == "update-disposition" and set(tokens) & set(lost):
            return 410, None
        return manage(served, queue, operation, body)

    monkeypatch.setattr(peer_module._Served, "_manage", refuse)
    with peer.lock:
        for number in lost:
            peer.queues["q"].give_back(number)


def test_a_connection_that_ended_during_a_batch_is_made_again(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    """A batch may last longer than a namespace keeps a connection on which nothing moves."""
    for batch in (5, 6):
        put(peer, batch)
        read(store, batch)
        settlement.settle_through(batch)
        with peer.lock:
            peer.drop_connections()
    assert outcomes(peer) == {1: "completed", 2: "completed"}


def test_many_messages_are_settled_by_many_requests_at_once(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    put(peer, *range(1, 1001))
    assert read(store, 5, batch_seconds="5") == list(range(1, 1001))
    settlement.settle_through(5)
    assert set(outcomes(peer).values()) == {"completed"}
    assert len(outcomes(peer)) == 1000


def test_a_run_with_an_end_gives_back_what_came_later(peer: Peer, store: BatchStore) -> None:
    put(peer, 1, 2, 3)
    assert read(store, 5, through=2) == [1, 2]
    peer.wait_for(lambda: 3 in peer.queues["q"].waiting)


def test_nothing_becomes_a_row_while_another_receiver_has_locked_an_earlier_message(
    peer: Peer, store: BatchStore
) -> None:
    put(peer, 1, 2, 3)
    with peer.lock:
        queue = peer.queues["q"]
        queue.waiting.remove(2)
        queue.locked[2] = None  # type: ignore[assignment]
    assert read(store, 5) == [1]
    peer.wait_for(lambda: 3 in peer.queues["q"].waiting)


def test_an_empty_entity_makes_an_empty_batch_that_counts_as_taken(
    peer: Peer, store: BatchStore, settlement: BatchSettlement
) -> None:
    assert read(store, 5, idle_seconds="0.1") == []
    settlement.settle_through(5)


@pytest.mark.parametrize("kind", ["index", "payloads"])
def test_a_batch_that_was_received_and_is_torn_stays_empty(
    peer: Peer, store: BatchStore, settlement: BatchSettlement, kind: str
) -> None:
    """A sink that has written it would skip what was received instead."""
    put(peer, 1, 2)
    read(store, 5)
    path = store.path(5, 0, kind)
    path.write_bytes(path.read_bytes()[:-1])
    put(peer, 3)
    assert [read(store, 5), read(store, 5)] == [[], []]
    settlement.settle_through(5)
    assert outcomes(peer) == {}
    assert read(store, 6, ordered="false") == [3]


def test_what_a_lost_connection_may_have_left_locked_is_waited_for(
    peer: Peer, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages may have been under way when the link ended: what comes behind them is later."""
    put(peer, 1)
    add = Writer.add

    def ended(writer: Writer, *more: Any) -> None:
        add(writer, *more)
        os.utime(store.folder / "guard", (1, 1))
        peer.detach("q", "amqp:internal-error")

    monkeypatch.setattr(Writer, "add", ended)
    assert read(store, 5, batch_seconds="5") == [1]
    assert store.guarded_seconds() < 60


@pytest.mark.parametrize("method", ["add", "complete"])
def test_what_cannot_be_written_is_given_back(
    peer: Peer, store: BatchStore, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Locks that expire count as deliveries: with a full disk all would soon be dead letters."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put(peer, *range(1, 101))
    with monkeypatch.context() as patch:
        patch.setattr(Writer, method, full)
        with pytest.raises(BatchFolderError, match="No space left"):
            read(store, 5)
    peer.wait_for(lambda: len(peer.queues["q"].waiting) == 100)
    assert read(store, 5) == list(range(1, 101))


def test_a_machine_that_does_not_see_the_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BatchFolderError, match=r"Set option spool to a folder that .* share; persist\(\)"):
        read(BatchStore(tmp_path / "elsewhere"), 5)


@pytest.mark.parametrize("dead", [(), (3,), (1, 50, 51, 100)])
def test_a_lost_lock_costs_no_other_its_renewal(peer: Peer, store: BatchStore, dead: tuple[int, ...]) -> None:
    """Azure Service Bus renews nothing of a request with one lost lock."""
    put(peer, *range(1, 101))
    read(store, 5, lock_seconds="30")
    with peer.lock:
        peer.queues["q"].lost = set(dead)
    renewal = BatchRenewal(SourceOptions.read(BASE), store)
    try:
        renewal.renew_due(time.monotonic())
        assert peer.queues["q"].renewed == set(range(1, 101)) - set(dead)
    finally:
        renewal._node.close()


def test_locks_are_renewed_while_spark_writes(peer: Peer, store: BatchStore) -> None:
    put(peer, 1, 2)
    read(store, 5, lock_seconds="30")
    renewal = BatchRenewal(SourceOptions.read(BASE), store)

    def renewals() -> list[Any]:
        return [body for _, operation, body in peer.requests if operation == "renew-lock"]

    now = time.monotonic()
    renewal.renew_due(now)  # those of an earlier run at once
    assert len(renewals()) == 1
    renewal.renew_due(now + 9.0)
    assert len(renewals()) == 1
    renewal.renew_due(now + 10.1)
    assert [len(body["lock-tokens"]) for body in renewals()] == [2, 2]
    renewal._node.close()
