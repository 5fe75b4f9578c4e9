"""When a lease as a whole ends."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.bridge.host.reader.life import ASSIGN_SECONDS, SILENCE_SECONDS, SINK_SECONDS, ReaderLife, Verdict


@dataclass
class Routes:
    is_empty: bool = False
    ended: bool = False

    def has_ended(self) -> bool:
        return self.ended


@dataclass
class Sink:
    has_come: bool = True
    is_gone: bool = False
    has_ended: bool = False
    received_at: float = 0.0


@dataclass
class Driver:
    is_gone: bool = False


def begun(lease_seconds: float = 5.0, *, needs_assignment: bool = False) -> ReaderLife:
    life = ReaderLife(lease_seconds, needs_assignment)
    life.begin(0.0)
    return life


def test_it_ends_by_time_and_is_over_when_all_routes_are() -> None:
    life = begun()
    assert life.deadline(0.0) == 5.0
    assert life.verdict(4.9, Routes(), Sink(), None) is Verdict.GO_ON
    assert life.verdict(5.0, Routes(), Sink(), None) is Verdict.END
    assert life.verdict(5.0, Routes(), Sink(), None) is Verdict.GO_ON
    assert life.verdict(5.1, Routes(ended=True), Sink(), None) is Verdict.OVER


def test_i2_it_does_not_end_in_good_order_before_its_sink_has_come() -> None:
    life = begun(0.0)
    missing = Sink(has_come=False)
    assert life.verdict(1.0, Routes(), missing, None) is Verdict.GO_ON
    life.stop_wish, life.is_driver_wish = "shutdown", True
    assert life.verdict(1.0, Routes(), missing, None) is Verdict.END
    assert life.verdict(1.0, Routes(ended=True), missing, None) is Verdict.GO_ON
    assert "no isthmus sink" in str(life.verdict(SINK_SECONDS, Routes(ended=True), missing, None))


def test_spark_s_thread_that_takes_nothing_more_does_not_wait_for_a_sink() -> None:
    life = begun()
    life.stop_wish = "the reader was closed"
    missing = Sink(has_come=False)
    assert life.verdict(1.0, Routes(), missing, None) is Verdict.END
    assert life.verdict(1.0, Routes(ended=True), missing, None) is Verdict.OVER


def test_the_time_counts_from_the_assignment() -> None:
    life = begun(5.0, needs_assignment=True)
    assert life.verdict(10.0, Routes(is_empty=True), Sink(received_at=10.0), Driver()) is Verdict.GO_ON
    life.assigned(2.0, 10.0)
    assert life.verdict(11.9, Routes(), Sink(received_at=11.0), Driver()) is Verdict.GO_ON
    assert life.verdict(12.0, Routes(), Sink(received_at=11.0), Driver()) is Verdict.END


def test_a_driver_that_assigns_nothing_fails_the_lease() -> None:
    life = begun(needs_assignment=True)
    assert "did not say" in str(life.verdict(ASSIGN_SECONDS, Routes(), Sink(received_at=ASSIGN_SECONDS), Driver()))


def test_a_driver_that_has_exited_ends_it() -> None:
    life = begun(needs_assignment=True)
    life.assigned(None, 0.0)
    assert life.verdict(1.0, Routes(), Sink(), Driver(is_gone=True)) is Verdict.END


def test_i1_a_sink_that_goes_away_fails_it_also_while_it_ends() -> None:
    life = begun()
    life.stop_wish = "x"
    life.verdict(1.0, Routes(), Sink(), None)
    assert "ended without notice" in str(life.verdict(1.0, Routes(), Sink(is_gone=True), None))
    assert life.has_sink_died


def test_i1_a_sink_that_failed_is_reported_with_its_error() -> None:
    life = begun()
    life.sink_error = "disk full"
    assert "disk full" in str(life.verdict(1.0, Routes(), Sink(has_ended=True), None))
    assert not life.has_sink_died


def test_a_sink_that_is_silent_fails_it() -> None:
    assert "silent" in str(begun(60.0).verdict(SILENCE_SECONDS, Routes(), Sink(), None))


def test_without_a_driver_it_ends_with_its_routes() -> None:
    assert begun().verdict(1.0, Routes(ended=True), Sink(), None) is Verdict.END
    assert begun().verdict(1.0, Routes(is_empty=True, ended=True), Sink(), None) is Verdict.GO_ON
