"""The host of a lease's sink against an in-memory system and a scripted reader."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.sender_fixture import AWAY, BUSY, NOT_FOUND, FakeReader, FakeSystem, encoded, spec
from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome
from isthmus.bridge.frame import Kind, pack_numbers, unpack_json
from isthmus.bridge.host.sender.error import RowRefusedError, SenderFaultError, SourceGoneError, TargetUnavailableError
from isthmus.bridge.host.sender.room import SenderRoom
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.errors import InvalidArgumentError


class Bench:
    """A sink, its reader and its target system."""

    def __init__(self, path: Path) -> None:
        self.system = FakeSystem()
        self.reader = FakeReader(path / "c")
        self.host = SenderHost(channel=path / "c", connectors=self.system).start()
        self.reader.accept()

    def rows(self, handle: int, positions: Any, payloads: list[bytes] | None = None, **more: Any) -> None:
        found = payloads if payloads is not None else [b"%d" % position for position in positions]
        self.host.hand_over(handle, positions, *encoded(found), **more)

    def stop(self) -> None:
        self.reader.send(Kind.STOPPED)
        self.host.finish()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.host.abort(SourceGoneError("the test is over"))
    found.reader.discard()
    found.system.discard()


def _numbers(payloads: list[bytes]) -> list[int]:
    return [int(payload) for payload in payloads]


# ---- the life of a handle


def test_a_route_is_opened_sent_and_settled(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    assert bench.system.by_key[1].origin_identity == "source-1"
    bench.rows(1, range(10, 30))
    assert bench.reader.wait_settled(1, 20) == list(range(10, 30))
    assert _numbers(bench.system.received["r"]) == list(range(10, 30))
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    assert bench.reader.kinds()[0] == "HELLO"
    assert bench.reader.kinds()[-1] == "END"
    assert bench.system.is_pool_closed


def test_rows_wait_for_the_first_opened(bench: Bench) -> None:
    bench.system.silent.add("r")
    bench.reader.open(1, spec("r"), waits=False)
    bench.rows(1, range(5))
    bench.rows(1, range(5, 8), [b"5", b"6", b"7"])
    bench.host.flush(1)
    bench.reader.wait(bench.reader.flushed)
    assert not bench.system.received
    assert not bench.reader.ready()
    bench.system.by_key[1].report(Opened(0), Granted(100))
    assert bench.reader.wait_settled(1, 8) == list(range(8))
    assert _numbers(bench.system.received["r"]) == list(range(8))


def test_many_routes_keep_their_order(bench: Bench) -> None:
    for handle in range(1, 51):
        bench.reader.open(handle, spec(f"r{handle}", in_flight=7), waits=False)
    bench.reader.wait(lambda: len(bench.reader.ready()) == 50)
    for start in range(0, 100, 5):
        for handle in range(1, 51):
            bench.rows(handle, range(start, start + 5), is_last=handle == 50)
    for handle in range(1, 51):
        assert bench.reader.wait_settled(handle, 100) == list(range(100))
        assert _numbers(bench.system.received[f"r{handle}"]) == list(range(100))


def test_a_slow_target_neither_blocks_the_caller_nor_another_route(bench: Bench) -> None:
    bench.system.mute.add("slow")
    bench.reader.open(1, spec("slow", in_flight=2))
    bench.reader.open(2, spec("quick"))
    for start in range(0, 5_000, 10):
        bench.rows(1, range(start, start + 10))
    bench.rows(2, range(10))
    assert bench.reader.wait_settled(2, 10) == list(range(10))
    assert bench.system.received["slow"] == [b"0", b"1"]
    for first in range(0, 5_000, 2):
        bench.system.by_key[1].report(Outcome(first, first + 1))
        bench.system.wait_received("slow", min(5_000, first + 4))
    assert bench.reader.wait_settled(1, 5_000) == list(range(5_000))
    assert _numbers(bench.system.received["slow"]) == list(range(5_000))


def test_rows_of_closed_and_unknown_handles_are_dropped_and_counted(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.reader.close_handle(1)
    bench.system.wait(lambda: bench.system.closed == [1])
    bench.rows(1, range(3))
    bench.rows(77, range(4))
    bench.reader.open(2, spec("r"))
    bench.rows(2, range(10, 12))
    assert bench.reader.wait_settled(2, 2) == [10, 11]
    assert bench.system.received["r"] == [b"10", b"11"]
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    assert unpack_json(bench.reader.of(Kind.STATS)[-1])["dropped"] == 7
    assert not bench.reader.settled(1)


def test_close_forgets_what_has_no_outcome(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.system.wait_received("r", 3)
    bench.reader.close_handle(1)
    bench.system.wait(lambda: bench.system.closed == [1])
    bench.system.by_key[1].report(Outcome(0, 2))
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    assert not bench.reader.settled(1)


# ---- targets that fail


def test_a_fatal_refusal_fails_only_its_route(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, spec("bad"))
    bench.reader.open(2, spec("good"))
    bench.rows(1, range(3))
    bench.system.wait_received("bad", 3)
    bench.system.by_key[1].report(Outcome(0, 0), Outcome(1, 1, NOT_FOUND), Outcome(2, 2))
    bench.reader.wait_kind(Kind.FAILED)
    reported = bench.reader.failed()[1]
    assert reported["is_fatal"]
    assert "there is no such entity" in reported["error"]
    kinds = bench.reader.kinds()
    assert bench.reader.settled(1) == [0]
    assert kinds.index("SETTLE") < kinds.index("FAILED")
    bench.rows(1, range(3, 6))
    bench.rows(2, range(3))
    assert bench.reader.wait_settled(2, 3) == [0, 1, 2]
    assert len(bench.system.received["bad"]) == 3
    assert bench.system.closed == [1]


def test_rows_of_a_failed_handle_count_for_flush_rows_until_it_is_closed(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.system.by_key[1].report(Lost(NOT_FOUND))
    bench.reader.wait_kind(Kind.FAILED)
    bench.rows(1, range(5))
    bench.host.flush(1)
    bench.reader.wait(lambda: len(bench.reader.flushed()) == 1)
    bench.reader.close_handle(1)
    bench.reader.open(2, spec("r"))
    bench.host.flush(2)
    bench.reader.wait(lambda: len(bench.reader.flushed()) == 2)
    assert bench.reader.flushed() == [(1, {1: 5}), (2, {2: 0})]


def test_a_lost_connection_is_opened_again_and_nothing_is_lost(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(6))
    bench.system.wait_received("r", 6)
    target = bench.system.by_key[1]
    target.report(Outcome(0, 1), Lost(AWAY))
    bench.reader.wait_kind(Kind.PAUSE)
    bench.rows(1, range(6, 8))
    assert _numbers(bench.system.wait_received("r", 10)[6:10]) == [2, 3, 4, 5]
    target.report(Outcome(0, 3), Granted(100))
    assert _numbers(bench.system.wait_received("r", 12)[10:]) == [6, 7]
    target.report(Outcome(4, 5))
    assert bench.reader.wait_settled(1, 8) == list(range(8))
    bench.reader.wait_kind(Kind.RESUME)
    assert target.opens == 2
    assert not bench.reader.of(Kind.FAILED)


def test_a_target_that_does_not_come_back_fails_the_route_in_time(bench: Bench) -> None:
    bench.reader.open(1, spec("r", target_seconds=0.05))
    bench.system.silent.add("r")
    bench.system.by_key[1].report(Lost(AWAY))
    bench.reader.wait_kind(Kind.FAILED)
    reported = bench.reader.failed()[1]
    assert not reported["is_fatal"]
    assert reported["error"].startswith("b: took nothing for 0.05 s: ")


def test_a_target_that_never_answers_to_open_fails_the_route(bench: Bench) -> None:
    bench.system.silent.add("r")
    bench.reader.open(1, spec("r", target_seconds=0.05), waits=False)
    bench.reader.wait_kind(Kind.FAILED)
    assert "did not answer" in bench.reader.failed()[1]["error"]


def test_a_target_that_never_gives_an_outcome_fails_the_route(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r", target_seconds=0.05))
    bench.rows(1, range(3))
    bench.reader.wait_kind(Kind.FAILED)
    assert "gave no outcome" in bench.reader.failed()[1]["error"]


def test_an_idle_target_does_not_fail(bench: Bench) -> None:
    bench.reader.open(1, spec("idle", target_seconds=0.05))
    bench.reader.open(2, spec("r", target_seconds=0.05))
    bench.system.mute.add("r")
    bench.rows(1, range(3))
    bench.rows(2, range(3))
    bench.reader.wait_kind(Kind.FAILED)  # so much time has passed for both
    assert list(bench.reader.failed()) == [2]


@pytest.mark.parametrize(
    ("route", "text"),
    [(spec("broken"), "broken connector"), (spec("x", steps=()), "unknown")],
)
def test_a_target_that_cannot_be_made_fails_only_its_route(bench: Bench, route: Any, text: str) -> None:
    bench.system.broken.add("broken")
    reported = route.to_json()
    if text == "unknown":
        reported["target"]["kind"] = "nonesuch"
    bench.reader.send(Kind.OPEN, json.dumps({"handle": 1, "spec": reported, "origin_identity": ""}).encode())
    bench.reader.wait_kind(Kind.FAILED)
    assert text in bench.reader.failed()[1]["error"]
    assert bench.reader.failed()[1]["is_fatal"]
    bench.reader.open(2, spec("good"))
    bench.rows(2, range(2))
    bench.reader.wait_settled(2, 2)


@pytest.mark.parametrize("call", ["service", "flush", "descriptors", "deadline"])
def test_a_fault_of_the_connections_of_one_kind_fails_no_other_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    kinds = {"fake": FakeSystem(), "other": FakeSystem()}
    for each in kinds.values():
        monkeypatch.setattr(each, "close", threading.Event().set)  # another pool of the kind is the same object
    reader = FakeReader(tmp_path / "c")
    host = SenderHost(channel=tmp_path / "c", connectors=kinds.__getitem__).start()
    reader.accept()
    other = spec("bad")
    other = replace(other, target=replace(other.target, kind="other"))
    reader.open(1, other)
    reader.open(2, spec("good"))

    sound, is_faulty = getattr(kinds["other"], call), [True]

    def faulty(*args: Any) -> Any:
        if is_faulty:
            is_faulty.clear()
            raise ValueError("a fault")
        return sound(*args)

    monkeypatch.setattr(kinds["other"], call, faulty)
    kinds["other"].rouse(1)
    reader.wait_kind(Kind.FAILED)
    reported = reader.failed()[1]
    assert not reported["is_fatal"]
    assert "a fault" in reported["error"]
    host.hand_over(2, range(3), *encoded([b"0", b"1", b"2"]))
    assert reader.wait_settled(2, 3) == [0, 1, 2]
    reader.close_handle(1)
    reader.open(3, other)
    host.hand_over(3, range(3), *encoded([b"0", b"1", b"2"]))
    assert reader.wait_settled(3, 3) == [0, 1, 2]
    host.abort(SourceGoneError("the test is over"))
    reader.discard()
    for each in kinds.values():
        each.discard()


def test_a_message_that_is_refused_for_itself_is_dead_lettered(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.system.wait_received("r", 3)
    large = Refusal(RefusalKind.MESSAGE, "too-large", "too large", "MessageTooLarge")
    bench.system.by_key[1].report(Outcome(0, 0), Outcome(1, 1, large), Outcome(2, 2))
    bench.reader.wait(bench.reader.disposed)
    (item,) = bench.reader.disposed()
    assert (item["handle"], item["first"], item["last"]) == (1, 1, 1)
    assert (item["disposition"], item["reason"]) == ("dead-letter", "MessageTooLarge")
    assert sorted(bench.reader.wait_settled(1, 2)) == [0, 2]


def test_targets_that_refuse_and_get_lost_at_random_get_everything(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.bridge.host.sender.handle.FIRST_DELAY_SECONDS", 0.0005)
    chance = random.Random(7)

    def decide(first: int, last: int) -> list[Any]:
        reported: list[Any] = []
        for ordinal in range(first, last + 1):
            kind = chance.random()
            if kind < 0.01:
                return [*reported, Lost(AWAY)]
            reported.append(Outcome(ordinal, ordinal, BUSY if kind < 0.03 else None))
        return reported

    bench.system.decide = decide
    for handle in range(1, 6):
        bench.reader.open(handle, spec(f"r{handle}", in_flight=20), waits=False)
    bench.reader.wait(lambda: len(bench.reader.ready()) == 5)
    for start in range(0, 200, 10):
        for handle in range(1, 6):
            bench.rows(handle, range(start, start + 10), is_last=handle == 5)
    bench.reader.wait(
        lambda: bench.reader.of(Kind.FAILED) or all(len(bench.reader.settled(each)) >= 200 for each in range(1, 6))
    )
    assert not bench.reader.failed()
    for handle in range(1, 6):
        assert sorted(bench.reader.settled(handle)) == list(range(200))
        assert set(_numbers(bench.system.received[f"r{handle}"])) == set(range(200))
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    assert all(len(bench.reader.settled(handle)) == 200 for handle in range(1, 6))
    assert not bench.reader.of(Kind.FAILED)


# ---- dispositions


def test_dispositions_have_the_positions_of_their_rows(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.rows(
        1,
        [5, 7, 9, 11],
        [b"5", b"visited", b"visited", b"11"],
        disposed=[(6, Disposition("dead-letter", "Step", "no"))],
    )
    bench.rows(1, [], [], disposed=[(12, Disposition("defer"))])
    bench.rows(1, range(20, 23), [b"visited"] * 3)
    assert bench.reader.wait_settled(1, 2) == [5, 11]
    bench.reader.wait(lambda: sum(each["last"] - each["first"] + 1 for each in bench.reader.disposed()) == 7)
    found = [(each["first"], each["last"], each["disposition"], each["reason"]) for each in bench.reader.disposed()]
    assert sorted(found) == [
        (6, 6, "dead-letter", "Step"),
        (7, 7, "complete", "visited"),
        (9, 9, "complete", "visited"),
        (12, 12, "defer", ""),
        (20, 22, "complete", "visited"),
    ]
    assert bench.system.received["r"] == [b"5", b"11"]


# ---- flush rows, windows, clocks


def test_flush_rows_show_how_many_rows_came_before_them(bench: Bench) -> None:
    bench.reader.open(1, spec("a"))
    bench.reader.open(2, spec("b"))
    bench.rows(1, range(4), is_last=False)
    bench.host.flush(1)
    bench.rows(1, range(4, 6), disposed=[(9, Disposition("complete"))], is_last=False)
    bench.rows(2, range(3), is_last=False)
    bench.host.flush(2)
    bench.reader.wait(lambda: bench.reader.flushed() and bench.reader.flushed()[-1][0] == 2)
    assert bench.reader.flushed()[-1] == (2, {1: 7, 2: 3})
    if len(bench.reader.flushed()) > 1:  # otherwise the second came before the first was reported
        assert bench.reader.flushed()[0] == (1, {1: 4, 2: 0})


def test_the_clock_of_the_source_makes_the_copies(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.reader.send(Kind.CLOCK, pack_numbers(1, 5_000_000_000_000))
    before = time.monotonic_ns() // 1_000_000
    bench.rows(1, range(1))
    bench.reader.wait_settled(1, 1)
    assert before <= bench.system.by_key[1].clocks[0] - 5_000_000_000_000 <= time.monotonic_ns() // 1_000_000 + 1


def test_statistics_show_what_changed(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.reader.open(2, spec("other"))
    bench.rows(1, range(4), [b"0", b"visited", b"2", b"3"])
    bench.reader.wait_settled(1, 3)

    def routes() -> dict[str, Any]:
        return {
            key: reported
            for each in bench.reader.of(Kind.STATS)
            for key, reported in unpack_json(each)["routes"].items()
        }

    bench.reader.wait(lambda: routes().get("1", {}).get("completed") == 3)
    assert routes()["1"]["discarded"] == 1


# ---- claims


def test_a_route_whose_fence_closes_fails_and_sends_nothing_more(bench: Bench) -> None:
    bench.system.mute.add("held")
    bench.reader.fence("c", 0.2)
    bench.reader.fence("other", 60)
    bench.reader.open(1, spec("held", claim="c", in_flight=1), waits=False)
    bench.reader.open(2, spec("free", claim="other"), waits=False)
    bench.rows(1, range(5))
    bench.reader.wait_kind(Kind.FAILED)
    assert list(bench.reader.failed()) == [1]
    assert "claim 'c'" in bench.reader.failed()[1]["error"]
    assert not bench.reader.failed()[1]["is_fatal"]
    bench.rows(1, range(5, 6))
    bench.rows(2, range(5))
    assert bench.reader.wait_settled(2, 5) == list(range(5))
    assert len(bench.system.received.get("held", ())) <= 1


def test_a_claim_that_was_never_confirmed_allows_nothing(bench: Bench) -> None:
    bench.reader.open(1, spec("r", claim="c"))
    bench.rows(1, range(5))
    bench.reader.wait_kind(Kind.FAILED)
    assert "r" not in bench.system.received


def test_a_fence_that_moves_on_keeps_the_route(bench: Bench) -> None:
    bench.reader.fence("c", 0.2)
    bench.reader.open(1, spec("r", claim="c"))
    bench.reader.fence("c", 60)
    bench.reader.fence("short", 0.3)
    bench.reader.open(2, spec("late", claim="short"))
    bench.reader.wait_kind(Kind.FAILED)  # by then the first fence would have closed
    assert list(bench.reader.failed()) == [2]
    bench.rows(1, range(5))
    bench.reader.wait_settled(1, 5)


# ---- the end


def test_finish_waits_for_what_has_no_outcome(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.system.wait_received("r", 3)
    bench.reader.send(Kind.STOPPED)
    with _finishing(bench.host) as over:
        bench.host.flush(1)
        bench.reader.wait(bench.reader.flushed)
        assert not over()
        bench.system.by_key[1].report(Outcome(0, 2))
        assert bench.reader.wait_settled(1, 3) == [0, 1, 2]
        bench.reader.wait_kind(Kind.END)


def test_the_end_of_the_input_without_stopped_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.bridge.host.sender.sender.STOPPED_SECONDS", 0.05)
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    with pytest.raises(SourceGoneError):
        bench.host.finish()
    bench.reader.wait_kind(Kind.ERROR)
    assert not bench.reader.of(Kind.END)


def test_a_reader_that_goes_away_fails_the_sink(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.reader.close()
    with pytest.raises(SourceGoneError):
        bench.host.finish()
    with pytest.raises(SourceGoneError):
        bench.rows(1, range(3))
    assert bench.system.is_pool_closed


def test_a_reader_that_has_stopped_may_go_away(bench: Bench) -> None:
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.reader.wait_settled(1, 3)
    bench.reader.send(Kind.STOPPED)
    bench.reader.close()
    bench.host.finish()


@pytest.mark.parametrize(("error", "died"), [(ValueError("a step"), True), (TargetUnavailableError("x"), False)])
def test_abort_informs_the_reader_whether_the_query_died(bench: Bench, error: Exception, died: bool) -> None:
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.reader.wait_settled(1, 3)
    bench.host.abort(error)
    reported = unpack_json(bench.reader.wait_kind(Kind.ERROR))
    assert reported["died"] is died
    assert str(error) in reported["error"]
    with pytest.raises(SenderFaultError if died else TargetUnavailableError):
        bench.host.flush(1)


def test_a_failed_route_does_not_keep_the_lease_from_ending(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.system.by_key[1].report(Lost(NOT_FOUND))
    bench.reader.wait_kind(Kind.FAILED)
    bench.stop()
    bench.reader.wait_kind(Kind.END)


def test_a_blocked_route_that_the_reader_closes_does_not_keep_the_lease_from_ending(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, spec("r"))
    bench.rows(1, range(3))
    bench.system.wait_received("r", 3)
    bench.system.by_key[1].report(*(Outcome(at, at, BUSY) for at in range(3)))
    bench.reader.wait_kind(Kind.PAUSE)
    bench.reader.close_handle(1)
    bench.stop()
    bench.reader.wait_kind(Kind.END)


def test_a_sink_that_starts_before_its_reader_finds_it(tmp_path: Path) -> None:
    system = FakeSystem()
    host = SenderHost(channel=tmp_path / "c", connectors=system).start()
    reader = FakeReader(tmp_path / "c").accept()
    reader.open(1, spec("r"))
    reader.send(Kind.STOPPED)
    host.finish()
    reader.discard()
    system.discard()


# ---- without a reader


@pytest.fixture
def system() -> Iterator[FakeSystem]:
    found = FakeSystem()
    yield found
    found.discard()


def test_a_plain_write_waits_for_every_acknowledgement(system: FakeSystem) -> None:
    system.mute.add("r")
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),)).start()
    host.hand_over(1, None, *encoded([b"a", b"b"]))
    system.wait_received("r", 2)
    with _finishing(host) as over:
        assert not over()
        system.by_key[1].report(Outcome(0, 1))


def test_a_plain_write_fails_with_its_target(system: FakeSystem) -> None:
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),)).start()
    system.wait(lambda: 1 in system.by_key)
    system.by_key[1].report(Lost(NOT_FOUND))
    with pytest.raises(TargetUnavailableError, match="no such entity"):
        host.finish()


@pytest.mark.parametrize("kind", ["dead-letter", "complete"])
def test_a_plain_write_has_no_source_to_give_rows_to(system: FakeSystem, kind: str) -> None:
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),)).start()
    host.hand_over(1, None, b"", [], [(0, Disposition(kind, "reason", "text"))])
    if kind == "complete":
        host.finish()
    else:
        with pytest.raises(RowRefusedError, match="reason"):
            host.finish()


def test_a_plain_write_can_say_what_becomes_of_rows_that_are_not_sent(system: FakeSystem) -> None:
    reported: list[tuple[int | None, Disposition]] = []
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),), dispose=lambda *each: reported.append(each))
    host.start()
    host.hand_over(1, None, b"", [], [(7, Disposition("dead-letter", "reason", "text"))])
    host.finish()
    assert reported == [(7, Disposition("dead-letter", "reason", "text"))]


def test_a_plain_write_fails_where_a_row_cannot_be_disposed_of(system: FakeSystem) -> None:
    def refuse(position: int | None, disposition: Disposition) -> None:
        raise InvalidArgumentError("no such source")

    host = SenderHost(channel=None, connectors=system, static=(spec("r"),), dispose=refuse).start()
    host.hand_over(1, None, b"", [], [(7, Disposition("dead-letter", "reason", "text"))])
    with pytest.raises(InvalidArgumentError, match="no such source"):
        host.finish()


def test_a_plain_write_makes_copies_by_the_clock_of_the_rows(system: FakeSystem) -> None:
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),)).start()
    host.hand_over(1, None, *encoded([b"a"]), clock_offset_ms=5_000_000_000_000)
    system.wait_received("r", 1)
    host.finish()
    assert system.by_key[1].clocks[0] >= 5_000_000_000_000


def test_a_plain_write_waits_while_much_waits_to_be_sent_i1(system: FakeSystem) -> None:
    """Nothing else limits what Spark delivers: the frame may be larger than the memory."""
    system.silent.add("r")
    host = SenderHost(channel=None, connectors=system, static=(spec("r"),))
    host._room = SenderRoom(100)
    host.start()
    added: list[int] = []

    def write() -> None:
        for _ in range(10):
            host.hand_over(1, None, *encoded([b"x" * 60]))
            added.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    system.wait(lambda: 1 in system.by_key)
    writer.join(0.1)
    assert len(added) == 2
    system.by_key[1].report(Opened(0), Granted(100))
    writer.join(10)
    host.finish()
    assert len(added) == 10


def test_a_sink_has_a_reader_or_routes_of_its_own(system: FakeSystem, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        SenderHost(channel=None, connectors=system)
    with pytest.raises(InvalidArgumentError):
        SenderHost(channel=tmp_path / "c", connectors=system, static=())


class _finishing:  # noqa: N801 - reads as a statement
    """Finishes in another thread; at the end it must have."""

    def __init__(self, host: SenderHost) -> None:
        self._error: BaseException | None = None
        self._host = host
        self._thread = threading.Thread(target=self._finish)

    def _finish(self) -> None:
        try:
            self._host.finish()
        except BaseException as error:  # noqa: BLE001 - raised by the test's thread
            self._error = error

    def __enter__(self) -> Callable[[], bool]:
        self._thread.start()
        return lambda: not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
