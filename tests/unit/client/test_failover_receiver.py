"""When a failover receiver considers the secondary drained, without namespaces."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from harness.check.until import until
from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.client.failover_receiver import FailoverReceiver, FailoverState
from isthmus.client.failure import Failure
from isthmus.client.receive.failover import PRIMARY, SECONDARY

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"
LATER_SECONDS = 60.0


class Engine:
    """Answers probes when a test says so."""

    def __init__(self) -> None:
        self.probes: list[Future[Any]] = []
        self.came_bytes = 0

    def received_bytes(self, side: str) -> int:
        return self.came_bytes

    def begin(self, side: str, what: object) -> Future[Any]:
        assert side == SECONDARY
        self.probes.append(Future())
        return self.probes[-1]

    def unsettled(self, keys: object) -> int:
        return 0

    def has_room(self, side: str) -> bool:
        return True


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[FailoverReceiver]:
    """Made while the fail-back was under way."""
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"version": 1, "state": "draining", "watermark_ms": 0}))
    made = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=state)
    assert made.state is FailoverState.DRAINING
    yield made
    made.close()


def test_a_secondary_that_is_silent_is_drained_only_once_it_has_answered(receiver: FailoverReceiver) -> None:
    """A namespace that hangs sends nothing either, and what was sent there would be left behind."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = time.monotonic() + LATER_SECONDS
    assert not receiver._is_caught_up(now)
    receiver._probe_read(now)
    assert not receiver._is_caught_up(now)
    engine.probes[0].set_result([])
    receiver._probe_read(now)
    assert receiver._is_caught_up(now)
    receiver._engine = kept


def test_a_namespace_from_which_a_large_message_comes_is_not_probed(receiver: FailoverReceiver) -> None:
    """The answer would come behind it, and the probe without an answer would end the connection, again and again, with the message in part."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = time.monotonic() + LATER_SECONDS
    receiver._came_bytes = engine.came_bytes = 2000  # by the last message
    for _ in range(5):
        engine.came_bytes += 100_000
        receiver._probe_read(now := now + LATER_SECONDS)
    assert not engine.probes
    engine.came_bytes += 8  # a keep-alive
    receiver._probe_read(now := now + LATER_SECONDS)
    assert len(engine.probes) == 1
    assert not receiver._is_caught_up(now), "that needs an answer"
    receiver._engine = kept


def test_after_a_restart_a_message_from_before_it_does_not_say_that_all_have_arrived(
    receiver: FailoverReceiver,
) -> None:
    """Only one from after the switch does; when that was is not kept, and it was before the restart."""
    receiver._arrived_at = time.monotonic()
    receiver._latest[0] = (0.0, time.time_ns() // 1_000_000 - 3_600_000)
    assert not receiver._is_caught_up(time.monotonic())
    receiver._latest[0] = (0.0, time.time_ns() // 1_000_000 + 3_600_000)
    assert receiver._is_caught_up(time.monotonic())


def message(name: str, sequence: int, enqueued_ms: int, **properties: str) -> ServiceBusReceivedMessage:
    annotations = {"x-opt-sequence-number": Long(sequence), "x-opt-enqueued-time": Timestamp(enqueued_ms)}
    return ServiceBusReceivedMessage.from_bytes(
        section.encode_message(name.encode(), properties={"message_id": name, **properties}, annotations=annotations)
    )


def test_a_message_that_came_twice_does_not_keep_the_secondary_from_being_drained(receiver: FailoverReceiver) -> None:
    """Its publisher sent it again after a time-out: one is handled, the other one is settled unseen."""
    engine = receiver._engine
    engine.on_open(SECONDARY, "NS-B")
    engine.on_messages(SECONDARY, [message("m1", 1, 1000), message("m1", 2, 1000)])
    [one] = engine.take(10)
    assert len(receiver._local) == 2
    engine.complete(one)
    assert engine.state().unsettled == 0
    receiver._probe_read = receiver._probe_primary = lambda now: None  # type: ignore[method-assign]
    receiver._is_caught_up = lambda now: True  # type: ignore[method-assign]
    receiver._machine._drain_since = 0.0
    receiver._poll(time.monotonic() + LATER_SECONDS)
    assert receiver.state is FailoverState.PRIMARY


def primary(path: Path) -> FailoverReceiver:
    made = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=path, watermark_drift=timedelta(seconds=1))
    made._engine.on_open(PRIMARY, "NS-A")
    return made


def handle(receiver: FailoverReceiver, *messages: ServiceBusReceivedMessage) -> None:
    receiver._engine.on_messages(PRIMARY, list(messages))
    for each in receiver._engine.take(10):
        receiver._engine.complete(each)


def mark(receiver: FailoverReceiver) -> int:
    return receiver._watermark.at_ms


def test_the_watermark_stays_while_what_a_killed_receiver_had_in_hand_is_locked(tmp_path: Path) -> None:
    """Its copy at the secondary would be settled though it was not handled."""
    first = primary(tmp_path / "state.json")
    handle(first, message("m1", 1, 10_000))
    assert mark(first) == 10_000
    first._engine.on_messages(PRIMARY, [message("in hand", 2, 20_000), message("m3", 3, 30_000)])
    [_, later] = first._engine.take(10)
    first._engine.complete(later)
    assert mark(first) == 20_000
    first._save()  # and then it is killed
    second = primary(tmp_path / "state.json")
    handle(second, message("m4", 4, 40_000))
    assert mark(second) == 20_000
    handle(second, message("in hand", 2, 20_000))
    second._poll(time.monotonic() + 400.0)
    assert mark(second) == 40_000
    first.close()
    second.close()


def test_the_watermark_continues_behind_a_message_that_comes_again_and_is_known(tmp_path: Path) -> None:
    receiver = primary(tmp_path / "state.json")
    handle(receiver, message("m1", 1, 10_000))
    handle(receiver, message("m1", 1, 10_000), message("m2", 2, 20_000))  # its settlement was lost
    assert mark(receiver) == 20_000
    receiver.close()


def test_the_watermark_stays_below_each_copy_that_rules_made_of_one_message(tmp_path: Path) -> None:
    """They have the enqueued time, and the sequence number in the topic, of that message."""
    receiver = FailoverReceiver(
        CONNECTION, CONNECTION, "orders", "s", state=tmp_path / "state.json", watermark_drift=timedelta(seconds=1)
    )
    receiver._engine.on_open(PRIMARY, "NS-A")
    handle(receiver, message("m1", 1, 10_000))
    copies = [
        ServiceBusReceivedMessage.from_bytes(
            section.encode_message(
                b"m2",
                properties={"message_id": "m2"},
                annotations={
                    "x-opt-sequence-number": Long(sequence),
                    "x-opt-enqueue-sequence-number": Long(2),
                    "x-opt-enqueued-time": Timestamp(20_000),
                },
                application_properties={"RuleName": rule},
            )
        )
        for sequence, rule in ((2, "heavy"), (3, "all"))
    ]
    receiver._engine.on_messages(PRIMARY, [*copies, message("m3", 4, 30_000)])
    first, _, last = receiver._engine.take(10)
    receiver._engine.complete(first)
    receiver._engine.complete(last)
    assert mark(receiver) == 20_000
    receiver.close()


def drain(receiver: FailoverReceiver, later: float) -> FailoverState:
    """An iteration so much later, when the secondary has answered a probe a moment before."""
    receiver._probe_read = receiver._probe_primary = lambda now: None  # type: ignore[method-assign]
    now = time.monotonic() + later
    receiver._answered_at = now - 1.0
    receiver._poll(now)
    return receiver.state


def draining(path: Path, state: str = "draining") -> FailoverReceiver:
    path.write_text(json.dumps({"version": 1, "state": state, "watermark_ms": 0}))
    made = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=path)
    made._machine._drain_since = 0.0
    return made


def test_a_secondary_is_not_drained_while_there_is_no_room_for_more_of_it(tmp_path: Path) -> None:
    """F2: the application is slow, and behind what it has yet to take are messages that were sent there."""
    receiver = draining(tmp_path / "state.json")
    receiver._may_be_unsettled_elsewhere = False
    engine = receiver._engine
    engine.on_open(SECONDARY, "NS-B")
    copies = [message(f"m{number}", number, 1000) for number in range(1, 21)]
    engine.on_messages(SECONDARY, copies)
    receiver._local.clear()  # as if they were copies
    assert drain(receiver, 60.0) is FailoverState.DRAINING
    for each in engine.take(20):
        engine.complete(each)
    assert drain(receiver, 60.5) is FailoverState.DRAINING
    assert drain(receiver, 120.0) is FailoverState.PRIMARY
    receiver.close()


@pytest.mark.parametrize("state", ["secondary", "publishers", "draining"])
def test_a_secondary_is_not_drained_while_what_a_killed_receiver_had_in_hand_is_locked(
    tmp_path: Path, state: str
) -> None:
    """F2: what comes back there would not be read."""
    receiver = draining(tmp_path / "state.json", state)
    receiver._engine.on_open(SECONDARY, "NS-B")
    receiver._machine.published(PRIMARY, 0.0)
    receiver._machine.state = FailoverState.DRAINING
    assert drain(receiver, 60.0) is FailoverState.DRAINING
    assert drain(receiver, 300.0) is FailoverState.DRAINING
    assert drain(receiver, 400.0) is FailoverState.PRIMARY
    receiver.close()


@pytest.mark.parametrize("what", ["abandoned", "handled", "again"])
def test_a_secondary_is_not_drained_while_what_it_had_delivered_before_a_lost_connection_is_locked(
    tmp_path: Path, what: str
) -> None:
    """F2, unless it was handled meanwhile, or has come again."""
    receiver = draining(tmp_path / "state.json")
    receiver._may_be_unsettled_elsewhere = False
    engine = receiver._engine
    engine.on_open(SECONDARY, "NS-B")
    engine.on_messages(SECONDARY, [message("m1", 1, 1000)])
    [one] = engine.take(1)
    engine.on_lost(SECONDARY, Failure.GONE, ConnectionError())
    engine.on_open(SECONDARY, "NS-B")
    if what == "handled":
        engine.complete(one)
    else:
        engine.abandon(one)
    if what == "again":
        engine.on_messages(SECONDARY, [message("m1", 1, 1000)])
        [one] = engine.take(1)
        engine.complete(one)
    receiver._machine._health[SECONDARY].failing_since = math.inf
    assert drain(receiver, 60.0) is (FailoverState.DRAINING if what == "abandoned" else FailoverState.PRIMARY)
    assert drain(receiver, 400.0) is FailoverState.PRIMARY
    receiver.close()


def test_a_message_with_a_copys_properties_that_is_none_is_waited_for(tmp_path: Path) -> None:
    """F2: an application published it at the secondary."""
    receiver = draining(tmp_path / "state.json")
    receiver._engine.on_open(SECONDARY, "NS-B")
    published = ServiceBusReceivedMessage.from_bytes(
        section.encode_message(
            b"m1",
            properties={"message_id": "m1"},
            annotations={"x-opt-sequence-number": Long(1), "x-opt-enqueued-time": Timestamp(1000)},
            application_properties={"repl-origin": "ewr/orders"},
        )
    )
    receiver._engine.on_messages(SECONDARY, [published])
    assert published in receiver._local
    receiver.close()


def test_a_call_of_publishers_that_is_overtaken_does_not_win(tmp_path: Path) -> None:
    """The primary fails again while publishers are being switched there."""
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    sends_to: list[str] = []

    def publishers(side: str) -> None:
        if side == PRIMARY:
            begun.set()
            assert go_on.wait(10)
        sends_to.append(side)
        if sends_to[-2:] == [PRIMARY, SECONDARY]:
            done.set()

    state = tmp_path / "state.json"
    state.write_text(json.dumps({"version": 1, "state": "secondary", "watermark_ms": 0}))
    receiver = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=state, publishers=publishers)
    receiver.fail_back()
    assert begun.wait(10)
    receiver._failed(PRIMARY)
    assert receiver.state is FailoverState.SECONDARY
    until(lambda: sends_to)
    go_on.set()
    assert done.wait(10)
    receiver.close()


def test_an_iteration_that_changes_nothing_is_followed_by_a_pause(receiver: FailoverReceiver) -> None:
    """Whatever wakes the thread at the end of its own iteration keeps it busy for ever."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = receiver._tried_primary_at = time.monotonic()
    receiver._poll(now)
    assert not receiver._wake.is_set()
    receiver.fail_over()
    assert receiver._wake.is_set()
    receiver._engine = kept


def test_a_probe_of_the_namespace_that_was_left_says_nothing_of_the_other(receiver: FailoverReceiver) -> None:
    """The change came between the question and its answer."""
    engine: Any = Engine()
    receiver._engine, kept = engine, receiver._engine
    now = time.monotonic() + LATER_SECONDS
    receiver._probe_read(now)
    engine.probes[0].set_exception(ConnectionError("the receiver is closed"))
    receiver._machine.state = FailoverState.PRIMARY
    engine.begin = lambda side, what: None
    receiver._probe_read(now)
    assert receiver._machine.view(now + 10).primary_away_seconds == 0
    receiver._engine = kept


def test_a_receiver_that_is_closed_writes_no_state(tmp_path: Path) -> None:
    """Its publishers answer late, when another receiver has continued from the file."""
    path = tmp_path / "state.json"
    receiver = draining(path, "publishers")
    receiver.close()
    kept = path.read_text()
    receiver._published(PRIMARY)
    receiver._failed(PRIMARY)
    receiver._save()
    assert path.read_text() == kept


def test_publishers_are_notified_again_by_a_receiver_that_was_killed_before_they_had_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is on disk before they are notified."""
    facts: list[str] = []
    done = threading.Event()

    def publishers(side: str) -> None:
        facts.append(side)
        done.set()

    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "state": "secondary", "watermark_ms": 0}))
    receiver = FailoverReceiver(CONNECTION, CONNECTION, "orders", state=path, publishers=publishers)
    monkeypatch.setattr(receiver._engine, "open_side", lambda side: None)
    receiver._carry_out(receiver._machine.start(time.monotonic()))
    assert done.wait(10)
    receiver.close()
    assert facts == [SECONDARY]


def test_a_clock_of_the_secondary_that_is_ahead_does_not_end_the_drain(tmp_path: Path) -> None:
    """F2: what came before the switch bears a later time than the switch."""
    receiver = draining(tmp_path / "state.json")
    receiver._may_be_unsettled_elsewhere = False
    receiver._engine.on_open(SECONDARY, "NS-B")
    now_ms = time.time_ns() // 1_000_000
    receiver._engine.on_messages(SECONDARY, [message("m1", 1, now_ms + 60_000)])
    receiver._switched_ms = time.time_ns() // 1_000_000
    assert not receiver._is_caught_up(time.monotonic())
    receiver._latest[0] = (0.0, now_ms + 80_000)
    assert receiver._is_caught_up(time.monotonic())
    receiver.close()


def test_each_partition_of_the_secondary_has_its_own_order(tmp_path: Path) -> None:
    """F2: one of them delivers what is from after the switch while another one has yet to deliver what is from before."""
    receiver = draining(tmp_path / "state.json")
    receiver._may_be_unsettled_elsewhere = False
    receiver._engine.on_open(SECONDARY, "NS-B")
    receiver._switched_ms = time.time_ns() // 1_000_000 - 60_000
    later = message("m1", 1 << 48 | 1, receiver._switched_ms + 30_000)
    earlier = message("m2", 2 << 48 | 1, receiver._switched_ms - 30_000)
    receiver._engine.on_messages(SECONDARY, [later, earlier])
    now = time.monotonic()
    assert not receiver._is_caught_up(now)
    assert receiver._is_caught_up(now + LATER_SECONDS)  # it sends no more
    receiver.close()
