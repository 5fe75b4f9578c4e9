"""A lease and an outlet in one process, joined by a real control channel, between two fake brokers."""

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.performative import Error, Modified, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.bridge.crash_search import SET_ASIDE_REASON
from isthmus.bridge.credit_window import FIRST_MESSAGES
from isthmus.bridge.delivery_event import HandedOver
from isthmus.bridge.fence import MARGIN_SECONDS
from isthmus.clock import SystemClock
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus import lease as lease_module
from isthmus.connectors.servicebus import outlet as outlet_module
from isthmus.connectors.servicebus import reader_line
from isthmus.connectors.servicebus.channel import Channel, listen
from isthmus.connectors.servicebus.lease import (
    Block,
    Finish,
    HeldElsewhereError,
    Lease,
    LeaseEnd,
    LeaseError,
    LeaseLimits,
    RowsDroppedError,
)
from isthmus.connectors.servicebus.lease_error import ClaimUnconfirmedError
from isthmus.connectors.servicebus.outlet import Outlet, RowRefusedError, SourceGoneError, TargetUnavailableError
from isthmus.connectors.servicebus.splice import Refused
from isthmus.connectors.servicebus.turn import FIRST, SECOND, Turn, prepare_turns
from isthmus.errors import ConnectionLostError, EntityNotFoundError, IsthmusError
from isthmus.testing import peer as peer_module
from isthmus.testing.peer import Peer

LIMITS = LeaseLimits(seconds=30, rows=10**6, nbytes=1 << 30, idle_seconds=0.2)
# Where more waits than the first credit fetches: a machine that stands still at that moment must not make the lease idle.
MANY = LeaseLimits(seconds=30, rows=10**6, nbytes=1 << 30, idle_seconds=2.0)


def message(number: int, size: int = 10) -> bytes:
    return section.encode_message(b"x" * size, properties={"message_id": f"m{number}"})


def ids(peer: Peer, name: str = "target") -> list[str]:
    with peer.lock:
        return [
            section.decode_properties(m, section.locate(m).properties)["message_id"]
            for m in peer.queues[name].messages.values()
        ]


class Pipe:
    """What Spark does between reader and sink, without Spark: blocks and flush rows in order, on a thread."""

    def __init__(
        self, lease: Lease, outlet: Outlet, step: Callable[[Block], Block | None] = lambda block: block
    ) -> None:
        self.lease = lease
        self.outlet = outlet
        self.step = step
        self.rows = 0
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        flushes = 0
        try:
            while not isinstance(item := self.lease.blocks.get(timeout=30), LeaseEnd):
                if isinstance(item, Block):
                    self.rows += len(item.payloads)
                    kept = self.step(item)
                    if kept is not None:
                        self.outlet.send(kept.payloads, kept.sequences)
                flushes += 1
                self.lease.note_flush(flushes, self.rows)
                if isinstance(item, Finish):
                    self.lease.note_finish(flushes)
                self.outlet.flush(flushes)
            if item.error is not None:
                raise item.error
            self.outlet.wait_source_end()
            self.outlet.finish()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.error = error
            self.outlet.abort(error)

    def run(self) -> None:
        """Runs the lease to its end; raises what Spark's task would fail with."""
        self.lease.start()
        self.thread.start()
        self.thread.join(40)
        assert not self.thread.is_alive()
        self.lease.join(10)
        if self.error is not None:
            raise self.error


@contextmanager
def brokers(count: int) -> Iterator[tuple[Peer, Peer]]:
    with Peer("source") as source, Peer("target") as target:
        for number in range(count):
            source.queues["source"].put(message(number))
        yield source, target


def pipe(
    source: Peer,
    target: Peer,
    channel_file: Path,
    *,
    limits: LeaseLimits = LIMITS,
    step: Any = lambda b: b,
    target_timeout_seconds: float = 5,
    **more: Any,
) -> Pipe:
    lease = Lease(source.endpoint, "source", limits, channel_file=channel_file, **more)
    outlet = Outlet(
        target.endpoint, "target", channel_file=channel_file, target_timeout_seconds=target_timeout_seconds
    ).open()
    return Pipe(lease, outlet, step)


@pytest.fixture(name="channel_file")
def _channel_file(tmp_path: Path) -> Path:
    return tmp_path / "task.lease"


def test_everything_is_copied_in_order_and_completed_i1(channel_file: Path) -> None:
    with brokers(3000) as (source, target):
        made = pipe(source, target, channel_file, limits=MANY)
        made.run()
        assert ids(target) == [f"m{n}" for n in range(3000)]
        source.wait_for(lambda: len(source.queues["source"].fates) == 3000)
        assert set(source.queues["source"].fates.values()) == {"completed"}
        assert made.lease.ended_by == "idle"
        assert (made.lease.ledger.settled, made.lease.ledger.outstanding) == (3000, 0)


@pytest.mark.parametrize("window", [1, 2])
def test_a_source_whose_window_is_full_does_not_wait_for_what_may_wait_i6(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(outlet_module, "READ_SECONDS", 3600.0)
    monkeypatch.setattr(reader_line, "TELL_SECONDS", 3600.0)
    with brokers(20) as (source, target):
        made = pipe(source, target, channel_file, window=window)
        made.run()
        assert ids(target) == [f"m{n}" for n in range(20)]
        source.wait_for(lambda: set(source.queues["source"].fates.values()) == {"completed"})


@contextmanager
def held_back(made: Pipe, target: Peer) -> Iterator[None]:
    """Moves messages; those that the target gets within the block it acknowledges after it, and all of them are waited for."""
    target.queues["target"].hold = True
    runner = threading.Thread(target=made.run)
    runner.start()
    try:
        yield
    finally:
        with target.lock:
            target.queues["target"].hold = False
        runner.join(30)


def test_nothing_is_completed_before_the_target_acknowledged_i1(channel_file: Path) -> None:
    with brokers(50) as (source, target):
        made = pipe(source, target, channel_file)
        with held_back(made, target):
            target.wait_for(lambda: len(target.queues["target"].messages) == 50)
            assert source.queues["source"].fates == {}
            assert made.lease.ledger.outstanding == 50
        assert len(source.queues["source"].fates) == 50


@pytest.mark.parametrize(
    ("limits", "ended_by"),
    [
        (LeaseLimits(3, 10**6, 1 << 30, 30), "time"),
        (LeaseLimits(30, 100, 1 << 30, 30), "rows"),
        (LeaseLimits(30, 10**6, 5000, 30), "bytes"),
        (LeaseLimits(30, 10**6, 1 << 30, 30, through=120), "through"),
    ],
)
def test_a_lease_ends_by_its_limits_and_gives_the_rest_back(
    limits: LeaseLimits, ended_by: str, channel_file: Path
) -> None:
    with brokers(300) as (source, target):
        made = pipe(source, target, channel_file, limits=limits)
        made.run()
        fates = source.queues["source"].fates
        completed = [s for s, fate in fates.items() if fate == "completed"]
        assert made.lease.ended_by == ended_by
        assert ids(target) == [f"m{s - 1}" for s in sorted(completed)]
        assert len(completed) == {"time": 300, "rows": 100, "bytes": 40, "through": 120}[ended_by]
        source.wait_for(lambda: not source.queues["source"].locked)
        assert len(source.queues["source"].waiting) == 300 - len(completed)


def test_a_lease_of_no_time_meets_its_sink_and_ends_without_a_message(channel_file: Path) -> None:
    with brokers(10) as (source, target):
        made = pipe(source, target, channel_file, limits=LeaseLimits(0.0, 10**6, 1 << 30, 30.0))
        made.run()
        assert (made.lease.ended_by, made.lease.ledger.added) == ("time", 0)
        assert not target.queues["target"].messages


def test_a_wish_to_stop_drains_and_ends_well(channel_file: Path, tmp_path: Path) -> None:
    control_file = tmp_path / "control"
    listener = listen(control_file)
    limits = LeaseLimits(30, 10**6, 1 << 30, 30)
    with brokers(20) as (source, target):
        made = pipe(source, target, channel_file, limits=limits, control_file=control_file)
        runner = threading.Thread(target=made.run)
        runner.start()
        target.wait_for(lambda: len(target.queues["target"].messages) == 20)
        control = Channel(listener.accept()[0])
        control.send(frames.STOP, b"the run ends")
        control.flush()
        runner.join(30)
        assert made.lease.ended_by == "the run ends"
        kind, told = control.receive()[-1]
        assert kind == frames.STATS
        sink = json.loads(told)["sink"]
        assert (sink["completed"], sink["dead_lettered"], sink["discarded"]) == (20, 0, 0)
        control.close()
    listener.close()


def test_a_wish_to_stop_gives_all_back_while_the_target_is_away_i2(
    channel_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops the run does not wait for the target, and locks that are left to expire raise delivery counts."""
    monkeypatch.setattr(lease_module, "DRAIN_SECONDS", 0.3)
    control_file = tmp_path / "control"
    listener = listen(control_file)
    with brokers(20) as (source, target):
        target.queues["target"].refuse = "com.microsoft:server-busy"
        made = pipe(source, target, channel_file, control_file=control_file, target_timeout_seconds=60)
        made.lease.start()
        made.thread.start()
        source.wait_for(lambda: made.lease._held)
        control = Channel(listener.accept()[0])
        control.send(frames.STOP, b"the run ends")
        control.flush()
        source.wait_for(lambda: len(source.queues["source"].waiting) == 20, 5)
        made.thread.join(20)
        assert set(source.queues["source"].fates.values()) == {"released"}
        assert isinstance(made.error, IsthmusError)
        control.close()
    listener.close()


class Driver:
    """The driver's end of a lease's control channel; the lease is started."""

    def __init__(self, made: Pipe, control_file: Path) -> None:
        self.listener = listen(control_file)
        self.made = made
        self.asked: list[int] = []
        self.told: list[dict[str, Any]] = []
        made.lease.start()
        made.thread.start()
        self.channel = Channel(_accepted(self.listener)[0])

    def wait_asked(self) -> int:
        """The number of the next question."""
        limit = time.monotonic() + 10
        while not self.asked:
            assert time.monotonic() < limit
            for kind, payload in self.channel.receive():
                assert kind == frames.STATS
                self.told.append(json.loads(payload))
                if "asked" in self.told[-1]:
                    self.asked.append(self.told[-1]["asked"])
            time.sleep(0.005)
        return self.asked.pop(0)

    def grant(self, **told: Any) -> None:
        """Answers the next question."""
        self.channel.send(frames.GRANT, json.dumps({"asked": self.wait_asked(), **told}).encode())
        self.channel.flush()

    def close(self) -> None:
        self.channel.close()
        self.listener.close()


@pytest.fixture(name="control_file")
def _control_file(tmp_path: Path) -> Path:
    return tmp_path / "control"


def test_nothing_is_locked_before_the_driver_has_confirmed_the_claim_i5(channel_file: Path, control_file: Path) -> None:
    with brokers(20) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)
        driver = Driver(made, control_file)
        source.wait_for(lambda: made.lease._met_sink)
        driver.grant(held_seconds=0.0)
        asked = driver.wait_asked()
        assert (made.lease.ledger.added, source.queues["source"].fates) == (0, {})
        driver.asked.append(asked)
        driver.grant(held_seconds=15.0)
        made.thread.join(30)
        assert made.error is None
        assert set(source.queues["source"].fates.values()) == {"completed"}
        assert len(ids(target)) == 20
        driver.close()


def test_a_lease_whose_driver_is_frozen_ends_by_itself_and_so_does_its_sink_i5(
    channel_file: Path, control_file: Path
) -> None:
    limits = LeaseLimits(30, 10**6, 1 << 30, 30)
    with brokers(20) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True, limits=limits)
        driver = Driver(made, control_file)
        driver.grant(held_seconds=MARGIN_SECONDS + 1.0)
        target.wait_for(lambda: len(target.queues["target"].messages) == 20)
        target.wait_for(lambda: made.lease.ledger.settled == 20)
        # From now on nobody answers. What comes behind the fence stands, and nothing of it has been locked or sent.
        source.wait_for(lambda: made.outlet._error is not None and not made.lease._thread.is_alive())
        with source.lock:
            late = source.queues["source"].put(message(20))
        made.thread.join(20)
        assert isinstance(made.error, ClaimUnconfirmedError)
        assert time.monotonic() >= made.lease._fence.until
        assert late not in source.queues["source"].fates
        assert len(ids(target)) == 20
        driver.close()


def test_what_comes_behind_the_fence_is_given_back_unsent_i5(channel_file: Path, control_file: Path) -> None:
    with brokers(0) as (source, target):
        limits = LeaseLimits(30, 10**6, 1 << 30, 30)
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True, limits=limits)
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0)
        source.wait_for(lambda: made.lease._receiver is not None and made.lease._receiver.credit > 0)
        made.lease._fence.until = time.monotonic()
        with source.lock:
            source.queues["source"].put(message(0))
        made.thread.join(30)
        assert isinstance(made.error, IsthmusError)
        assert set(source.queues["source"].fates.values()) <= {"released"}
        assert not target.queues["target"].messages
        driver.close()


def test_a_sink_sends_nothing_behind_the_fence_though_its_reader_be_frozen(channel_file: Path) -> None:
    with Peer("target") as target:
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file).open()
        listener = listen(channel_file)
        reader = Channel(_accepted(listener)[0])
        assert heard(reader, frames.HELLO)
        reader.send(frames.FENCE, frames.packed(time.monotonic_ns()))
        reader.flush()
        target.wait_for(lambda: outlet._error is not None)
        with pytest.raises(ClaimUnconfirmedError):
            outlet.send([message(1)], [1])
        assert not target.queues["target"].messages
        outlet.close()
        reader.close()
        listener.close()


@contextmanager
def joined(target: Peer, channel_file: Path) -> Iterator[tuple[Outlet, Channel]]:
    """An outlet, and the reader's end of its line."""
    outlet = Outlet(target.endpoint, "target", channel_file=channel_file).open()
    listener = listen(channel_file)
    reader = Channel(_accepted(listener)[0])
    assert heard(reader, frames.HELLO)
    try:
        yield outlet, reader
    finally:
        outlet.close()
        reader.close()
        listener.close()


def test_a_fence_that_moved_while_a_connection_was_made_is_heard_before_sending(channel_file: Path) -> None:
    with Peer("target") as target, joined(target, channel_file) as (outlet, reader):
        with outlet._changed:
            outlet._reader.fence = time.monotonic() - 1.0
            reader.send(frames.FENCE, frames.packed(time.monotonic_ns() + 60 * 10**9))
            reader.flush()
            outlet._tell(HandedOver([message(1)], [1]))
        target.wait_for(lambda: len(target.queues["target"].messages) == 1)
        assert outlet._error is None


def test_after_a_fault_nothing_is_sent_and_no_outcome_is_taken_for_anothers(channel_file: Path) -> None:
    with Peer("target") as target, joined(target, channel_file) as (outlet, reader):
        with outlet._changed:
            outlet._reader.fence = time.monotonic() - 1.0
            outlet._tell(HandedOver([message(1)], [1]))
            outlet._reader.fence = time.monotonic() + 60.0
            outlet._tell(HandedOver([message(2)], [2]))
            outlet._push()
        assert isinstance(outlet._error, ClaimUnconfirmedError)
        time.sleep(0.5)
        settled = [frames.unpack_pairs(payload) for kind, payload in reader.receive() if kind == frames.SETTLE]
        assert (settled, ids(target)) == ([], [])


def test_a_failed_sink_gives_every_lock_back_i2(channel_file: Path) -> None:
    def fail(block: Block) -> Block:
        raise ZeroDivisionError("a step of the query failed")

    with brokers(100) as (source, target):
        with pytest.raises(ZeroDivisionError):
            pipe(source, target, channel_file, step=fail).run()
        source.wait_for(lambda: len(source.queues["source"].waiting) == 100)
        assert set(source.queues["source"].fates.values()) == {"released"}


def test_a_sink_that_dies_without_a_word_ends_the_lease_i4(channel_file: Path) -> None:
    with brokers(10) as (source, _):
        lease = Lease(source.endpoint, "source", LIMITS, channel_file=channel_file)
        lease.start()
        sink = greeted(channel_file)
        assert isinstance(lease.blocks.get(timeout=10), Block)
        sink.close()
        end = next(item for item in iter(lambda: lease.blocks.get(timeout=10), None) if isinstance(item, LeaseEnd))
        assert isinstance(end.error, LeaseError)
        source.wait_for(lambda: len(source.queues["source"].waiting) == 10)


def test_silence_ends_the_lease_i4(channel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with brokers(10) as (source, _):
        lease = Lease(source.endpoint, "source", LeaseLimits(30, 10**6, 1 << 30, 30), channel_file=channel_file)
        lease.start()
        sink = greeted(channel_file)
        assert isinstance(lease.blocks.get(timeout=10), Block)
        monkeypatch.setattr(lease_module, "SILENCE_SECONDS", 0.2)
        end = next(item for item in iter(lambda: lease.blocks.get(timeout=10), None) if isinstance(item, LeaseEnd))
        assert "silent" in str(end.error)
        source.wait_for(lambda: len(source.queues["source"].waiting) == 10)
        sink.close()


def test_without_a_sink_nothing_is_locked_and_the_option_is_named_i4(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "SINK_SECONDS", 0.2)
    with brokers(10) as (source, _):
        lease = Lease(source.endpoint, "source", LeaseLimits(30, 10**6, 1 << 30, 30), channel_file=channel_file)
        lease.start()
        end = next(item for item in iter(lambda: lease.blocks.get(timeout=10), None) if isinstance(item, LeaseEnd))
        assert "settle=commit" in str(end.error)
        assert source.queues["source"].fates == {}


def greeted(channel_file: Path) -> Channel:
    limit = time.monotonic() + 10
    while (sink := frames.dial(channel_file)) is None:
        assert time.monotonic() < limit
        time.sleep(0.005)
    sink.send(frames.HELLO)
    sink.flush()
    return sink


def test_a_sink_whose_reader_is_gone_fails_though_its_input_ended(channel_file: Path) -> None:
    with Peer("target") as target:
        listener = listen(channel_file)
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file).open()
        sock, _ = _accepted(listener)
        outlet.send([message(1)], [1])
        sock.close()
        with pytest.raises(SourceGoneError):
            outlet.wait_source_end()
        outlet.abort(SourceGoneError("x"))
        listener.close()


def _accepted(listener: Any) -> Any:
    limit = time.monotonic() + 10
    while True:
        try:
            return listener.accept()
        except BlockingIOError:
            assert time.monotonic() < limit
            time.sleep(0.005)


def test_rows_that_a_step_dropped_are_given_back_and_the_step_is_named(channel_file: Path) -> None:
    def drop_odd(block: Block) -> Block:
        keep = [i for i, s in enumerate(block.sequences) if s % 2 == 0]
        return Block(*([part[i] for i in keep] for part in block))  # type: ignore[arg-type]

    with brokers(10) as (source, target):
        with pytest.raises(RowsDroppedError, match=r"5 messages from sequence number 1 .*my\.step"):
            pipe(source, target, channel_file, step=drop_odd, steps="my.step").run()
        source.wait_for(lambda: len(source.queues["source"].waiting) == 5)
        assert sorted(source.queues["source"].fates.values()) == ["completed"] * 5 + ["released"] * 5


def test_an_ordered_lease_waits_for_an_earlier_message_that_is_locked_elsewhere_i3(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEAD_RETRY_SECONDS", 0.05)
    with brokers(20) as (source, target):
        held = source.queues["source"]
        with source.lock:
            held.waiting.remove(3)
            held.locked[3] = object()  # type: ignore[assignment]
        made = pipe(source, target, channel_file, limits=LeaseLimits(30, 10**6, 1 << 30, 2))
        runner = threading.Thread(target=made.run)
        runner.start()
        source.wait_for(lambda: held.fates.get(20) == "released")
        target.wait_for(lambda: len(target.queues["target"].messages) >= 2)
        assert ids(target) == ["m0", "m1"]
        with source.lock:
            held.give_back(3)
        target.wait_for(lambda: len(target.queues["target"].messages) == 20)
        runner.join(30)
        assert ids(target) == [f"m{n}" for n in range(20)]


def test_a_look_whether_anybody_listens_disturbs_no_lease(channel_file: Path) -> None:
    with brokers(200) as (source, target):
        target.queues["target"].hold = True
        made = pipe(source, target, channel_file, limits=MANY)
        runner = threading.Thread(target=made.run)
        runner.start()
        target.wait_for(lambda: len(target.queues["target"].messages) == 200)
        with socket.socket(socket.AF_UNIX) as look:
            look.connect(str(channel_file))
        with target.lock:
            target.queues["target"].hold = False
            target.drop_connections()
        runner.join(30)
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_lost_target_gets_exactly_what_it_did_not_acknowledge_i2(channel_file: Path) -> None:
    with brokers(200) as (source, target):
        target.queues["target"].hold = True
        made = pipe(source, target, channel_file, limits=MANY)
        runner = threading.Thread(target=made.run)
        runner.start()
        target.wait_for(lambda: len(target.queues["target"].messages) == 200)
        with target.lock:
            target.queues["target"].hold = False
            target.drop_connections()
        target.wait_for(lambda: len(target.queues["target"].messages) == 400)
        runner.join(30)
        assert ids(target) == [f"m{n}" for n in range(200)] * 2
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_lost_source_is_settled_by_token_over_a_new_connection_i2(channel_file: Path) -> None:
    with brokers(30) as (source, target):
        made = pipe(source, target, channel_file)
        with held_back(made, target):
            target.wait_for(lambda: len(target.queues["target"].messages) == 30)
            with source.lock:
                held = source.queues["source"]
                source.drop_connections()
                for sequence in range(1, 31):  # a real namespace keeps the locks of a lost connection
                    held.waiting.remove(sequence)
                    held.locked[sequence] = None  # type: ignore[assignment]
        assert set(held.fates.values()) == {"completed"}
        assert len(held.fates) == 30
        assert made.error is None
        assert made.lease.ended_by.startswith("source lost")


def test_a_refusal_that_may_pass_is_tried_again_and_holds_no_credit_i3(channel_file: Path) -> None:
    with brokers(40) as (source, target):
        target.queues["target"].refuse = "com.microsoft:server-busy"
        made = pipe(source, target, channel_file)
        runner = threading.Thread(target=made.run)
        runner.start()
        source.wait_for(lambda: made.lease._held != "")
        source.wait_for(lambda: made.lease._receiver is not None and made.lease._receiver.credit == 0)
        assert source.queues["source"].fates == {}
        with target.lock:
            target.queues["target"].refuse = None
        runner.join(30)
        assert ids(target) == [f"m{n}" for n in range(40)]
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_target_that_stays_away_fails_the_query_and_releases_i3(channel_file: Path) -> None:
    with brokers(10) as (source, target):
        target.queues["target"].refuse = "amqp:resource-limit-exceeded"
        made = pipe(source, target, channel_file, target_timeout_seconds=0.3)
        with pytest.raises(IsthmusError, match=r"took nothing for 0\.3 s"):
            made.run()
        source.wait_for(lambda: len(source.queues["source"].waiting) == 10)
        assert set(source.queues["source"].fates.values()) == {"released"}


def test_a_target_that_refuses_for_ever_fails_the_query_however_often_it_is_tried_i3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet_module, "delay_seconds", lambda attempt: 0.01)
    with Peer("target") as target:
        target.queues["target"].refuse = "amqp:resource-limit-exceeded"
        outlet = Outlet(target.endpoint, "target", target_timeout_seconds=0.5).open()
        outlet.send([message(n) for n in range(3)], None)
        with ending(target, outlet), pytest.raises(TargetUnavailableError, match=r"took nothing for 0\.5 s"):
            outlet.finish()


def test_a_target_that_answers_no_more_after_a_refusal_fails_the_query_i3() -> None:
    with Peer("target") as target:
        queue = target.queues["target"]
        queue.refuse, queue.refuse_only, queue.hold = "com.microsoft:server-busy", (b"m1",), True
        outlet = Outlet(target.endpoint, "target", target_timeout_seconds=0.5).open()
        outlet.send([message(1), message(2)], None)
        with ending(target, outlet), pytest.raises(TargetUnavailableError):
            outlet.finish()


@contextmanager
def ending(target: Peer, outlet: Outlet) -> Iterator[None]:
    """Lets a write that waits for ever end after seconds; it should have ended by then."""

    def relent() -> None:
        with target.lock:
            target.queues["target"].refuse, target.queues["target"].hold = None, False

    timer = threading.Timer(5.0, relent)
    timer.start()
    try:
        yield
        assert timer.is_alive()
    finally:
        timer.cancel()
        timer.join()
        outlet.close()


def test_a_disabled_target_costs_no_message_i3(channel_file: Path) -> None:
    with brokers(5) as (source, target):
        target.queues["target"].refuse = "com.microsoft:entity-disabled"
        made = pipe(source, target, channel_file)
        runner = threading.Thread(target=made.run)
        runner.start()
        source.wait_for(lambda: made.lease._held != "" or source.queues["source"].fates)
        assert source.queues["source"].fates == {}
        with target.lock:
            target.queues["target"].refuse = None
        runner.join(30)
        assert ids(target) == [f"m{n}" for n in range(5)]
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_target_that_is_disabled_for_a_while_is_waited_for_i3(channel_file: Path) -> None:
    """A namespace detaches the links of an entity that is disabled, and refuses new ones."""
    with brokers(5) as (source, target):
        target.queues["target"].hold = True
        made = pipe(source, target, channel_file)
        runner = threading.Thread(target=made.run)
        runner.start()
        target.wait_for(lambda: len(target.queues["target"].messages) == 5)
        with target.lock:
            target.detach("target", "com.microsoft:entity-disabled")
            target.queues["target"].hold = False
        runner.join(30)
        assert ids(target) == [f"m{n}" for n in range(5)] * 2
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_disabled_source_is_settled_by_token_i2(channel_file: Path) -> None:
    with brokers(5) as (source, target):
        made = pipe(source, target, channel_file)
        with held_back(made, target):
            target.wait_for(lambda: len(target.queues["target"].messages) == 5)
            with source.lock:
                source.detach("source", "com.microsoft:entity-disabled")
            source.wait_for(lambda: made.lease.ended_by.startswith("source lost"))
        assert source.queues["source"].fates == dict.fromkeys(range(1, 6), "completed")


def test_a_sink_that_finds_its_reader_while_the_target_is_away_greets_it_later(channel_file: Path) -> None:
    with Peer("target") as target:
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file).open()
        with outlet._changed:
            assert outlet._target.client is not None
            outlet._target.client.error = ConnectionLostError("gone")
            listener = listen(channel_file)
        reader = Channel(_accepted(listener)[0])
        assert heard(reader, frames.HELLO)
        outlet.close()
        reader.close()
        listener.close()


def test_a_sink_looks_for_its_reader_from_when_its_target_stands(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "DIAL_FOR_SECONDS", 1.0)
    target = Peer("target")
    waker = threading.Timer(1.2, target.__enter__)
    waker.start()
    outlet = Outlet(target.endpoint, "target", channel_file=channel_file).open()
    listener = listen(channel_file)
    reader = Channel(_accepted(listener)[0])
    assert heard(reader, frames.HELLO)
    outlet.close()
    reader.close()
    listener.close()
    target.__exit__(None, None, None)


def heard(channel: Channel, kind: int) -> bool:
    """Whether a frame of that kind comes within seconds."""
    limit = time.monotonic() + 3
    while time.monotonic() < limit and not channel.closed:
        if any(each == kind for each, _ in channel.receive()):
            return True
        time.sleep(0.01)
    return False


def test_a_sink_whose_target_is_away_may_be_silent_for_as_long_as_connecting_takes_i4(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brokers(10) as (source, _):
        lease = Lease(source.endpoint, "source", LeaseLimits(30, 10**6, 1 << 30, 30), channel_file=channel_file)
        lease.start()
        sink = greeted(channel_file)
        assert isinstance(lease.blocks.get(timeout=10), Block)
        sink.send(frames.HOLD, b'{"error": "the target is away"}')
        sink.flush()
        source.wait_for(lambda: lease._held)
        monkeypatch.setattr(lease_module, "SILENCE_SECONDS", 0.2)
        time.sleep(0.8)
        assert lease.ended_by == ""
        sink.send(frames.RESUME)
        sink.flush()
        end = next(item for item in iter(lambda: lease.blocks.get(timeout=10), None) if isinstance(item, LeaseEnd))
        assert "silent" in str(end.error)
        sink.close()


@pytest.mark.parametrize("skew_ms", [-3_600_000, -20_000, 0, 50_000, 3_600_000])
def test_the_length_of_a_lock_is_known_whatever_this_machines_clock_says(channel_file: Path, skew_ms: int) -> None:
    """Renewed before a lock of 60 s ends, and guarded until those of a dead reader have ended."""
    with brokers(1) as (source, target):
        made = pipe(source, target, channel_file, lock_seconds=60.0)
        made.lease._clock = SystemClock(skew_ms)
        made.run()
        assert made.lease._lock_seconds <= 60.0
        assert made.lease._guarded_until >= made.lease._started + 60.0


def test_a_source_that_is_busy_at_a_renewal_ends_no_lease(channel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = refusing(monkeypatch, "renew-lock", 503, times=2)
    with brokers(5) as (source, target):
        made = pipe(source, target, channel_file)
        made.lease._learn = lambda _: setattr(made.lease, "_lock_seconds", 0.6)  # type: ignore[method-assign]
        with held_back(made, target):
            source.wait_for(lambda: len(busy) == 2 and source.requests[-1][1] == "renew-lock")
            time.sleep(0.3)
        assert source.queues["source"].fates == dict.fromkeys(range(1, 6), "completed")


def refusing(monkeypatch: pytest.MonkeyPatch, operation: str, status: int, times: int) -> list[int]:
    """Lets every fake broker answer an operation so often with a status; what was answered so."""
    answered: list[int] = []
    manage = peer_module._Served._manage

    def refuse(self: Any, queue: Any, asked: str, body: Any) -> tuple[int, Any]:
        if asked == operation and len(answered) < times:
            answered.append(status)
            return status, None
        return manage(self, queue, asked, body)

    monkeypatch.setattr(peer_module._Served, "_manage", refuse)
    return answered


def test_a_look_that_fails_gives_back_also_what_it_was_for_i2(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "peek-message", 503, times=10**6)
    with brokers(20) as (source, target):
        with source.lock:
            source.queues["source"].waiting.remove(3)
        made = pipe(source, target, channel_file, window=4)
        with pytest.raises(IsthmusError):
            made.run()
        assert "answer" in str(made.lease._error)
        source.wait_for(lambda: not source.queues["source"].locked)
        assert set(source.queues["source"].fates.values()) <= {"completed", "released"}
        completed = [n for n, fate in source.queues["source"].fates.items() if fate == "completed"]
        assert ids(target)[: len(completed)] == [f"m{n - 1}" for n in completed]
        assert max(completed, default=0) < 3


def test_an_unexpected_fault_at_the_end_is_no_good_end(channel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(lease_module, "settle_by_token", fail)
    with brokers(5) as (source, target):
        target.queues["target"].hold = True
        made = pipe(source, target, channel_file)
        made.lease.start()
        made.thread.start()
        target.wait_for(lambda: len(target.queues["target"].messages) == 5)
        source.drop_connections()
        with target.lock:
            target.queues["target"].hold = False
        made.thread.join(30)
        assert "no such thing" in str(made.error)


def test_a_refusal_that_will_not_pass_dead_letters_that_row_i4(channel_file: Path) -> None:
    with brokers(3) as (source, target):
        target.queues["target"].refuse = "amqp:link:message-size-exceeded"
        pipe(source, target, channel_file).run()
        assert set(source.queues["source"].fates.values()) == {"dead-lettered: MessageTooLarge"}


@pytest.mark.parametrize("batch_messages", [0, 10])
def test_nothing_overtakes_what_is_sent_again(monkeypatch: pytest.MonkeyPatch, batch_messages: int) -> None:
    """What is refused again and again is waited for: later messages come behind it."""
    monkeypatch.setattr(outlet_module, "delay_seconds", lambda attempt: 0.01)
    with Peer("target") as target:
        queue = target.queues["target"]
        queue.refuse, queue.refuse_only = "com.microsoft:server-busy", (b"\xa1\x02m5",)
        outlet = Outlet(target.endpoint, "target", batch_messages=batch_messages).open()
        outlet.send([message(n) for n in range(20)], None)
        target.wait_for(lambda: queue.refused >= 1)
        later = threading.Thread(target=outlet.send, args=([message(n) for n in range(20, 300)], None))
        later.start()
        target.wait_for(lambda: queue.refused >= 5)
        assert set(ids(target)) < {f"m{n}" for n in range(20)}
        with target.lock:
            queue.refuse = None
        later.join(10)
        outlet.finish()
        assert sorted(ids(target)[:20]) == sorted(f"m{n}" for n in range(20))
        assert ids(target)[20:] == [f"m{n}" for n in range(20, 300)]


NEVER = {
    "unknown condition": Rejected(Error(Symbol("contoso:no"), "not today")),
    "no error": Rejected(),
    "released": Released(),
    "modified": Modified(True, False),
}


@pytest.mark.parametrize("state", NEVER.values(), ids=NEVER)
def test_a_message_refused_for_ever_is_dead_lettered_and_the_others_go_on(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch, state: object
) -> None:
    monkeypatch.setattr(outlet_module, "SET_ASIDE_SECONDS", 0.3)
    with brokers(100) as (source, target):
        target.queues["target"].refuse_state, target.queues["target"].refuse_only = state, (b"\xa1\x02m5",)
        lease = Lease(
            source.endpoint, "source", LeaseLimits(30, 10**6, 1 << 30, 2.0), channel_file=channel_file, window=20
        )
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file, window=10).open()
        Pipe(lease, outlet).run()
        fates = source.queues["source"].fates
        assert fates == dict.fromkeys(range(1, 101), "completed") | {6: "dead-lettered: RefusedByTarget"}
        assert sorted(ids(target)) == sorted(f"m{n}" for n in range(100) if n != 5)
        assert "message 6" in outlet.statistics()["last_set_aside"]


def test_what_was_accepted_behind_a_blocked_message_is_not_sent_again_by_the_next_lease(tmp_path: Path) -> None:
    with brokers(3000) as (source, target):
        queue = target.queues["target"]
        queue.refuse, queue.refuse_only = "contoso:no", (b"\xa1\x02m5",)
        for attempt in range(2):
            file = tmp_path / f"{attempt}.lease"
            lease = Lease(source.endpoint, "source", MANY, channel_file=file)
            outlet = Outlet(target.endpoint, "target", channel_file=file, target_timeout_seconds=0.5).open()
            with pytest.raises(IsthmusError, match="contoso:no"):  # the sink's, or the lease's that heard of it
                Pipe(lease, outlet).run()
            source.wait_for(lambda: not source.queues["source"].locked)
            assert 6 in source.queues["source"].waiting
        queue.refuse = None
        pipe(source, target, tmp_path / "last.lease", limits=MANY).run()
        assert sorted(ids(target)) == sorted(f"m{n}" for n in range(3000))
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_lone_refused_message_keeps_the_credit_by_which_another_comes(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "SET_ASIDE_SECONDS", 0.2)
    with brokers(1) as (source, target):
        queue = target.queues["target"]
        queue.refuse, queue.refuse_only = "contoso:no", (b"\xa1\x02m0",)
        made = pipe(source, target, channel_file, limits=MANY)
        runner = threading.Thread(target=made.run)
        runner.start()
        target.wait_for(lambda: queue.refused >= 4)
        with source.lock:
            source.queues["source"].put(message(1))
        runner.join(30)
        assert source.queues["source"].fates == {1: "dead-lettered: RefusedByTarget", 2: "completed"}


def test_a_lone_refused_message_lets_another_come_though_the_window_is_one(
    channel_file: Path, control_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers have died, so that the driver allows one message: it would be refused for ever."""
    monkeypatch.setattr(outlet_module, "SET_ASIDE_SECONDS", 0.2)
    with brokers(3) as (source, target):
        queue = target.queues["target"]
        queue.refuse, queue.refuse_only = "contoso:no", (b"\xa1\x02m0",)
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True, limits=MANY)
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0, window=1, span=8, set_aside=0, deaths=0)
        made.thread.join(20)
        assert source.queues["source"].fates == {
            1: "dead-lettered: RefusedByTarget",
            2: "completed",
            3: "completed",
        }
        driver.close()


@pytest.mark.parametrize("batch_messages", [0, 10])
def test_a_message_over_the_links_limit_is_dead_lettered_and_not_sent_i4(
    channel_file: Path, batch_messages: int
) -> None:
    """Whoever sends such a message loses the link (AMQP 2.7.3), and would send it again, and lose the next."""
    with brokers(3) as (source, target):
        source.queues["source"].put(message(3, 2 << 20))
        source.queues["source"].put(message(4))
        lease = Lease(source.endpoint, "source", LIMITS, channel_file=channel_file)
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file, batch_messages=batch_messages).open()
        Pipe(lease, outlet).run()
        assert ids(target) == ["m0", "m1", "m2", "m4"]
        fates = source.queues["source"].fates
        assert fates == dict.fromkeys((1, 2, 3, 5), "completed") | {4: "dead-lettered: MessageTooLarge"}


def test_a_run_with_an_end_names_the_message_that_others_hold(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEAD_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "GUARD_SECONDS", 0.1)
    with brokers(5) as (source, target):
        with source.lock:
            source.queues["source"].waiting.remove(2)
            source.queues["source"].locked[2] = object()  # type: ignore[assignment]
        made = pipe(source, target, channel_file, limits=LeaseLimits(30, 10**6, 1 << 30, 5, through=5))
        made.lease._learn = lambda _: setattr(made.lease, "_guarded_until", time.monotonic() + 60)  # type: ignore[method-assign]
        made.lease._lock_seconds = 0.2
        with pytest.raises(HeldElsewhereError, match="message 2 has been locked"):
            made.run()
        assert ids(target) == ["m0"]
        source.wait_for(lambda: source.queues["source"].waiting == [3, 4, 5])


def test_a_missing_target_fails_at_once(channel_file: Path) -> None:
    with Peer("other") as target, pytest.raises(EntityNotFoundError):
        Outlet(target.endpoint, "target", channel_file=channel_file).open()


def test_rows_get_their_dispositions(channel_file: Path) -> None:
    verdicts = ["complete", "dead-letter", "defer", "abandon"]

    with brokers(5) as (source, target):
        made = pipe(source, target, channel_file, limits=LeaseLimits(30, 5, 1 << 30, 30))

        def step(block: Block) -> None:
            refused = [(s, Refused(0, verdicts[s - 2], "why", "")) for s in block.sequences if s > 1]
            copies = [p for s, p in zip(block.sequences, block.payloads, strict=True) if s == 1]
            made.outlet.send(copies, [1] if copies else [], refused)

        made.step = step  # type: ignore[assignment]
        made.run()
        assert source.queues["source"].fates == {
            1: "completed",
            2: "completed",
            3: "dead-lettered: why",
            4: "deferred",
            5: "abandoned",
        }
        assert ids(target) == ["m0"]


@pytest.mark.parametrize("batch_messages", [0, 7])
def test_a_writer_without_a_source_sends_and_waits(batch_messages: int) -> None:
    with Peer("target") as target:
        outlet = Outlet(target.endpoint, "target", batch_messages=batch_messages).open()
        outlet.send([message(n) for n in range(1200)], None)
        outlet.finish()
        assert ids(target) == [f"m{n}" for n in range(1200)]


def test_a_bad_row_without_a_source_fails_the_write() -> None:
    with Peer("target") as target:
        outlet = Outlet(target.endpoint, "target").open()
        outlet.send([message(1)], None, [(0, Refused(0, "dead-letter", "bad", "row"))])
        with pytest.raises(RowRefusedError, match="bad"):
            outlet.finish()


def test_envelopes_settle_all_their_messages(channel_file: Path) -> None:
    with brokers(1000) as (source, target):
        lease = Lease(source.endpoint, "source", MANY, channel_file=channel_file)
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file, batch_messages=64).open()
        Pipe(lease, outlet).run()
        assert ids(target) == [f"m{n}" for n in range(1000)]
        assert len(source.queues["source"].fates) == 1000


def test_of_an_envelope_refused_for_one_message_only_that_one_is_dead_lettered(channel_file: Path) -> None:
    bad = ("m3", "m70", "m71", "m199")
    with brokers(200) as (source, target):
        target.queues["target"].refuse = "amqp:link:message-size-exceeded"
        target.queues["target"].refuse_only = tuple(b"\xa1%c%b" % (len(name), name.encode()) for name in bad)
        lease = Lease(source.endpoint, "source", MANY, channel_file=channel_file)
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file, batch_messages=10).open()
        Pipe(lease, outlet).run()
        assert sorted(ids(target)) == sorted(f"m{n}" for n in range(200) if f"m{n}" not in bad)
        fates = source.queues["source"].fates
        assert {n for n in fates if fates[n] == "dead-lettered: MessageTooLarge"} == {4, 71, 72, 200}
        assert sum(fate == "completed" for fate in fates.values()) == 196
        statistics = outlet.statistics()
        assert (statistics["completed"], statistics["dead_lettered"]) == (196, 4)


def test_a_message_that_has_no_place_in_an_envelope_goes_by_itself(channel_file: Path) -> None:
    """Envelopes have a limit of their own, below that of messages where those may be large."""
    large = message(7, 300_000)
    with brokers(3) as (source, target):
        sequence = source.queues["source"].put(large)
        stored = source.queues["source"].messages[sequence]
        target.queues["target"].refuse = "amqp:link:message-size-exceeded"
        target.queues["target"].refuse_only = (b"\0Su\xb0" + len(stored).to_bytes(4, "big"),)
        lease = Lease(source.endpoint, "source", LIMITS, channel_file=channel_file)
        outlet = Outlet(target.endpoint, "target", channel_file=channel_file, batch_messages=10).open()
        Pipe(lease, outlet).run()
        assert ids(target) == ["m0", "m1", "m2", "m7"]
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_bad_message_in_an_envelope_without_a_source_fails_the_write_after_the_others_went() -> None:
    with Peer("target") as target:
        target.queues["target"].refuse = "com.microsoft:argument-error"
        target.queues["target"].refuse_only = (b"m5",)
        outlet = Outlet(target.endpoint, "target", batch_messages=10).open()
        outlet.send([message(n) for n in range(10)], None)
        with pytest.raises(RowRefusedError, match="argument-error"):
            outlet.finish()
        assert sorted(ids(target)) == [f"m{n}" for n in range(10) if n != 5]


def test_an_unknown_source_is_the_readers_error(channel_file: Path) -> None:
    with Peer("other") as source:
        lease = Lease(source.endpoint, "source", LIMITS, channel_file=channel_file)
        lease.start()
        end = lease.blocks.get(timeout=10)
        assert isinstance(end, LeaseEnd)
        assert isinstance(end.error, EntityNotFoundError)
        lease.join(5)


def test_locks_are_renewed_while_the_target_is_slow(channel_file: Path) -> None:
    with brokers(5) as (source, target):
        made = pipe(source, target, channel_file)
        made.lease._learn = lambda _: setattr(made.lease, "_lock_seconds", 0.6)  # type: ignore[method-assign]
        with held_back(made, target):
            source.wait_for(lambda: sum(operation == "renew-lock" for _, operation, _ in source.requests) >= 2)
        assert len(source.queues["source"].fates) == 5


def test_the_window_bounds_what_is_under_way(channel_file: Path) -> None:
    with brokers(500) as (source, target):
        made = pipe(source, target, channel_file, limits=MANY, window=100)
        with held_back(made, target):
            target.wait_for(lambda: len(target.queues["target"].messages) == 100)
            assert made.lease.ledger.outstanding == 100
            assert len(source.queues["source"].waiting) == 400
        assert len(source.queues["source"].fates) == 500


def test_the_window_in_bytes_holds_from_the_first_message_on(channel_file: Path) -> None:
    """Before one has come nobody knows how large they are, and a backlog of large ones must not fill the memory."""
    with brokers(0) as (source, target):
        for number in range(200):
            source.queues["source"].put(message(number, 100_000))
        limits = LeaseLimits(30, 10**6, 1 << 30, 2.0)
        made = pipe(source, target, channel_file, window_bytes=1 << 20, limits=limits)
        with held_back(made, target):
            target.wait_for(lambda: len(target.queues["target"].messages) >= 10)
            time.sleep(0.2)
            assert made.lease.ledger.outstanding <= 12
        assert len(source.queues["source"].fates) == 200


@pytest.mark.parametrize("unread_seconds", [60.0, 0.2])
def test_nothing_is_read_beyond_the_window_in_bytes_when_messages_grow(
    channel_file: Path, monkeypatch: pytest.MonkeyPatch, unread_seconds: float
) -> None:
    """Credit was given for small ones. The socket stays unread; where that lasts, what comes goes back, and comes again."""
    monkeypatch.setattr(lease_module, "UNREAD_SECONDS", unread_seconds)
    bound, small, large = 2 << 20, 30, 20
    with brokers(small) as (source, target):
        for number in range(small, small + large):
            source.queues["source"].put(message(number, 900_000))
        limits = LeaseLimits(30, small + large, 1 << 30, 5.0)
        made = pipe(source, target, channel_file, window_bytes=bound, limits=limits)
        most = 0
        hand_on = made.lease._hand_on

        def watched(*block: Any) -> None:
            nonlocal most
            hand_on(*block)
            most = max(most, made.lease.ledger.outstanding_bytes)

        made.lease._hand_on = watched  # type: ignore[method-assign]
        with held_back(made, target):
            source.wait_for(made.lease._is_full)
            time.sleep(0.5)
            assert len(target.queues["target"].messages) < small + 4
            if unread_seconds < 1.0:
                source.wait_for(lambda: made.lease._receiver is not None and made.lease._receiver.credit == 0)
        assert most <= bound + (1 << 20) + 900_000
        assert ids(target) == [f"m{n}" for n in range(small + large)]
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_the_first_credit_is_one_and_then_by_what_came(channel_file: Path) -> None:
    with brokers(0) as (source, target):
        made = pipe(source, target, channel_file, limits=LeaseLimits(30, 3, 1 << 30, 30))
        with held_back(made, target):
            source.wait_for(lambda: made.lease._receiver is not None and made.lease._receiver.credit > 0)
            assert made.lease._receiver is not None
            assert made.lease._receiver.credit == 1
            with source.lock:
                for number in range(3):
                    source.queues["source"].put(message(number))
            target.wait_for(lambda: len(target.queues["target"].messages) == 3)


def test_what_killed_its_workers_is_dead_lettered_unread_and_the_driver_is_told(
    channel_file: Path, control_file: Path
) -> None:
    with brokers(20) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0, window=1, span=1, set_aside=1, deaths=2)
        made.thread.join(30)
        made.lease.join(10)
        assert made.error is None
        fates = source.queues["source"].fates
        assert fates.pop(1) == f"dead-lettered: {SET_ASIDE_REASON}"
        assert set(fates.values()) == {"completed"}
        assert ids(target) == [f"m{n}" for n in range(1, 20)]
        told = [json.loads(payload) for _, payload in driver.channel.receive()]
        assert told[-1]["dead_lettered"] == 1
        assert any(each["set_aside"] == [1] for each in told)
        driver.close()


def test_the_driver_knows_of_each_message_of_a_small_window_before_it_is_handed_on(
    channel_file: Path, control_file: Path
) -> None:
    with brokers(5) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)
        told: list[dict[str, Any]] = []
        known: list[tuple[int, int]] = []

        def step(block: Block) -> Block:
            told.extend(json.loads(payload) for kind, payload in driver.channel.receive() if kind == frames.STATS)
            last = [*driver.told, *told][-1]
            known.append((last["head"], last["window"]))
            return block

        made.step = step
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0, window=1, span=100)
        made.thread.join(30)
        assert made.error is None
        assert known == [(number, 1) for number in range(1, 6)]
        assert len(ids(target)) == 5
        driver.close()


def test_a_window_that_grows_is_told_before_more_can_be_under_way(channel_file: Path, control_file: Path) -> None:
    with brokers(1000) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True, limits=MANY)
        told: list[dict[str, Any]] = []

        def step(block: Block) -> Block:
            told.extend(json.loads(payload) for kind, payload in driver.channel.receive() if kind == frames.STATS)
            assert made.lease.ledger.outstanding <= max(each["window"] for each in (*driver.told, *told))
            return block

        made.step = step
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0)
        made.thread.join(30)
        assert made.error is None
        assert max(each["window"] for each in told) > FIRST_MESSAGES
        assert len(ids(target)) == 1000
        driver.close()


def test_a_sink_that_dies_is_told_to_the_driver(channel_file: Path, control_file: Path) -> None:
    with brokers(10) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)

        def die(block: Block) -> Block:
            raise ZeroDivisionError("a step of the query failed")

        made.step = die
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0)
        made.thread.join(30)
        made.lease.join(10)
        assert isinstance(made.error, ZeroDivisionError)
        told = [json.loads(payload) for _, payload in driver.channel.receive()]
        assert any(each.get("died") and each["head"] == 1 for each in told)
        driver.close()


def test_a_lease_that_fails_says_so_before_its_worker_can_be_killed(channel_file: Path, control_file: Path) -> None:
    with brokers(10) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)

        def refuse(block: Block) -> Block:
            raise TargetUnavailableError("took nothing")

        made.step = refuse
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0)
        made.thread.join(30)
        made.lease.join(10)
        told = [json.loads(payload) for _, payload in driver.channel.receive()]
        failed = next(each for each in told if each.get("failed"))
        assert failed["outstanding"] > 0
        assert "died" not in failed
        driver.close()


def test_what_was_set_aside_is_never_told_as_moved(channel_file: Path, control_file: Path) -> None:
    """With a small window each settlement is told at once."""
    with brokers(6) as (source, target):
        made = pipe(source, target, channel_file, control_file=control_file, claimed=True)

        def dispose(block: Block) -> None:
            made.outlet.send([], [], [(number, Refused(0, "dead-letter", "Odd", "")) for number in block.sequences])

        made.step = dispose
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0, window=1, span=100, set_aside=0, deaths=0)
        made.thread.join(30)
        made.lease.join(10)
        told = driver.told + [json.loads(payload) for _, payload in driver.channel.receive()]
        assert {each["moved"] for each in told if "moved" in each} == {0}
        assert told[-1]["dead_lettered"] == 6
        driver.close()


def test_errors_reach_the_reader_as_the_last_item() -> None:
    error: IsthmusError = LeaseError("x")
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    items.put(LeaseEnd(error))
    assert items.get().error is error
    assert outlet_module.CHUNK > 0


# ---- turns


@pytest.fixture(name="turns")
def _turns(tmp_path: Path) -> Path:
    folder = tmp_path / "turns"
    prepare_turns(folder)
    return folder


@contextmanager
def running(*pipes: Pipe) -> Iterator[None]:
    """Both of a route's tasks at once; raises what one of them fails with."""
    runners = [threading.Thread(target=each.run) for each in pipes]
    for runner in runners:
        runner.start()
    try:
        yield
    finally:
        for each in pipes:
            each.lease.stop("the test is over")
        for runner in runners:
            runner.join(40)
    for each in pipes:
        assert each.error is None, each.error


def test_the_next_lease_takes_over_while_messages_flow(
    tmp_path: Path, turns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "OVERTIME_SECONDS", 30.0)
    long, short = LeaseLimits(30, 10**6, 1 << 30, 30), LeaseLimits(0.5, 10**6, 1 << 30, 30)
    sent = 0
    with brokers(0) as (source, target):
        one = pipe(source, target, tmp_path / "1.lease", limits=short, turn=Turn(turns, FIRST))
        other = pipe(source, target, tmp_path / "2.lease", limits=long, turn=Turn(turns, SECOND))

        def send_until_settled(by: Pipe, count: int) -> None:
            nonlocal sent
            limit = time.monotonic() + 25
            while by.lease.ledger.settled < count:
                assert time.monotonic() < limit
                with source.lock:
                    source.queues["source"].put(message(sent))
                sent += 1
                time.sleep(0.005)

        with running(one):
            send_until_settled(one, 50)
            with running(other):
                send_until_settled(other, 50)
                target.wait_for(lambda: len(target.queues["target"].messages) == sent)
                source.wait_for(lambda: len(source.queues["source"].fates) == sent)
        assert ids(target) == [f"m{n}" for n in range(sent)]
        assert one.lease.ended_by == "time"
        assert one.lease.ledger.settled + other.lease.ledger.settled == sent
        assert set(source.queues["source"].fates.values()) == {"completed"}


def test_a_lease_goes_on_until_the_next_is_ready(tmp_path: Path, turns: Path) -> None:
    with brokers(10) as (source, target):
        made = pipe(
            source, target, tmp_path / "1.lease", limits=LeaseLimits(0.2, 10**6, 1 << 30, 30), turn=Turn(turns, FIRST)
        )
        with running(made):
            source.wait_for(lambda: len(source.queues["source"].fates) == 10)
            time.sleep(0.5)
            assert made.lease.ended_by == ""
            other = Turn(turns, SECOND)
            other.stand_next()
            source.wait_for(lambda: made.lease.ended_by == "time")
            source.wait_for(lambda: other.take(time.monotonic() + 30))
            other.leave()


def test_a_lease_does_not_wait_for_ever_for_one_that_never_comes(
    tmp_path: Path, turns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "OVERTIME_SECONDS", 0.3)
    with brokers(10) as (source, target):
        limits = LeaseLimits(0.2, 10**6, 1 << 30, 30)
        made = pipe(source, target, tmp_path / "1.lease", limits=limits, turn=Turn(turns, FIRST))
        made.run()
        assert made.lease.ended_by == "time"
        assert len(ids(target)) == 10


def test_nothing_is_locked_before_the_turn_has_come_i4(tmp_path: Path, turns: Path) -> None:
    other = Turn(turns, SECOND)
    assert other.take(time.monotonic() + 1)
    with brokers(10) as (source, target):
        made = pipe(source, target, tmp_path / "1.lease", turn=Turn(turns, FIRST))
        with running(made):
            source.wait_for(other.is_awaited)
            time.sleep(0.3)  # longer than the time after which a lease is idle
            assert (made.lease.ledger.added, made.lease.ended_by) == (0, "")
            assert source.queues["source"].fates == {}
            other.leave()
            source.wait_for(lambda: len(source.queues["source"].fates) == 10)


def test_the_driver_knows_who_has_the_turn_before_a_message_can_kill_it(
    tmp_path: Path, turns: Path, control_file: Path
) -> None:
    other = Turn(turns, SECOND)
    assert other.take(time.monotonic() + 1)
    with brokers(1) as (source, target):
        more = {"turn": Turn(turns, FIRST), "control_file": control_file, "claimed": True}
        states: list[str] = []

        def step(block: Block) -> Block:
            told = [json.loads(payload) for kind, payload in driver.channel.receive() if kind == frames.STATS]
            states.extend(each["state"] for each in (*driver.told, *told) if "state" in each)
            return block

        made = pipe(source, target, tmp_path / "1.lease", step=step, **more)
        driver = Driver(made, control_file)
        driver.grant(held_seconds=15.0)
        source.wait_for(other.is_awaited)
        other.leave()
        made.thread.join(30)
        assert made.error is None
        assert states[0] == "next"
        assert states[-1] == "running"
        driver.close()


def test_a_lease_whose_turn_is_far_away_ends(tmp_path: Path, turns: Path) -> None:
    other = Turn(turns, SECOND)
    assert other.take(time.monotonic() + 300)
    with brokers(10) as (source, target):
        made = pipe(source, target, tmp_path / "1.lease", turn=Turn(turns, FIRST))
        made.run()
        assert (made.lease.ended_by, made.lease.ledger.added) == ("turn", 0)
        assert not other.is_awaited()
    other.leave()


def test_a_lease_that_fails_gives_the_turn_up_after_its_messages(tmp_path: Path, turns: Path) -> None:
    def fail(block: Block) -> Block:
        raise ZeroDivisionError("a step of the query failed")

    other = Turn(turns, SECOND)
    with brokers(100) as (source, target):
        made = pipe(source, target, tmp_path / "1.lease", turn=Turn(turns, FIRST), step=fail)
        with pytest.raises(ZeroDivisionError):
            made.run()
        assert other.take(time.monotonic() + 1)
        source.wait_for(lambda: len(source.queues["source"].waiting) == 100)
    other.leave()
