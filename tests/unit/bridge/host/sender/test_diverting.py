"""Routes whose steps divert messages: what the sink sends where, and what is reported to the reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.sender_fixture import AWAY, NOT_FOUND, FakeReader, FakeSystem, FakeTarget, encoded, spec
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome
from isthmus.bridge.frame import Kind, unpack_json
from isthmus.bridge.host.sender.error import DivertUnknownError, SourceGoneError
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.message.name import WHY_DESCRIPTION, WHY_REASON, WHY_ROUTE, WHY_SOURCE

WHY = Disposition("divert:b/bad", "ValidationFailed", "step validate: at /n")


class Bench:
    """A sink, its reader and its target system."""

    def __init__(self, path: Path) -> None:
        self.system = FakeSystem()
        self.reader = FakeReader(path / "c")
        self.host = SenderHost(channel=path / "c", connectors=self.system).start()
        self.reader.accept()

    def rows(self, handle: int, positions: Any, diverted: Any = (), why: Disposition = WHY, **more: Any) -> None:
        reported = [(position, why, _message(position)) for position in diverted]
        self.host.hand_over(handle, positions, *encoded([b"%d" % each for each in positions]), (), reported, **more)

    def target(self, name: str) -> FakeTarget:
        """The latest target of this name."""
        return [each for each in self.system.by_key.values() if each.name == name][-1]

    def diverted(self) -> list[tuple[int, int, str, str]]:
        return [(each["handle"], each["first"], each["disposition"], each["reason"]) for each in self.reader.disposed()]

    def wait_diverted(self, count: int) -> list[int]:
        def positions() -> list[int]:
            return [at for each in self.reader.disposed() for at in range(each["first"], each["last"] + 1)]

        self.reader.wait(lambda: len(positions()) >= count)
        assert {each["disposition"] for each in self.reader.disposed()} == {"divert"}
        return positions()

    def counts(self, handle: int) -> dict[str, Any]:
        """The latest statistics of a route."""
        found = [unpack_json(each)["routes"] for each in self.reader.of(Kind.STATS)]
        return next((each[str(handle)] for each in reversed(found) if str(handle) in each), {})

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


def _message(number: int) -> bytes:
    return section.encode_message(b"%d" % number, application_properties={"number": number})


def _route(name: str = "r", **settings: Any) -> RouteSpec:
    bad = {"b/bad": End("fake", "b", {"entity": "bad"})}
    return spec(name, diverts=bad, diverted_from="a/flights", **settings)


def _reported(message: bytes) -> dict[str, Any]:
    found: dict[str, Any] = section.decode_map(message, section.locate(message).application_properties)
    return found


def test_diverted_rows_go_to_their_entity_and_are_reported_under_the_route_i3(bench: Bench) -> None:
    bench.reader.open(7, _route())
    bench.rows(7, [1, 3, 5], diverted=[2, 4])
    bench.rows(7, [], diverted=[6])
    assert bench.reader.wait_settled(7, 3) == [1, 3, 5]
    assert sorted(bench.wait_diverted(3)) == [2, 4, 6]
    assert bench.system.received["r"] == [b"1", b"3", b"5"]
    assert [_reported(each) for each in bench.system.received["bad"]] == [
        {"number": n, WHY_REASON: WHY.reason, WHY_DESCRIPTION: WHY.description, WHY_SOURCE: "a/flights", WHY_ROUTE: "r"}
        for n in (2, 4, 6)
    ]
    assert {each[0] for each in bench.diverted()} == {7}
    assert bench.target("bad").origin_identity == "source-1"
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    counts = bench.counts(7)
    assert (counts["completed"], counts["diverted"], counts["blocked_by"]) == (3, 3, "")
    assert not counts["is_awaited"]
    assert sorted(bench.system.closed) == [-1, 7]


def test_a_message_is_reported_as_diverted_only_when_it_is_acknowledged_i2(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route())
    bench.rows(1, range(10), diverted=[100, 101])
    bench.rows(1, range(102, 110))
    assert bench.reader.wait_settled(1, 18) == [*range(10), *range(102, 110)]
    bench.system.wait_received("bad", 2)
    assert not bench.reader.disposed()
    bench.reader.wait(lambda: bench.counts(1).get("completed") == 18)
    assert bench.counts(1)["is_awaited"], "the divert target has not answered"
    bench.target("bad").report(Outcome(1, 1))
    assert bench.wait_diverted(1) == [101]
    bench.target("bad").report(Outcome(0, 0))
    assert bench.wait_diverted(2) == [101, 100]


def test_the_target_delays_no_diverted_message(bench: Bench) -> None:
    bench.system.mute.add("r")
    bench.reader.open(1, _route())
    bench.rows(1, range(5), diverted=[9])
    assert bench.wait_diverted(1) == [9]
    assert not bench.reader.settled(1)


def test_a_route_is_ready_when_all_of_its_entities_are_i1(bench: Bench) -> None:
    bench.system.silent.add("bad")
    bench.reader.open(1, _route(), waits=False)
    bench.reader.open(2, spec("other"))
    assert bench.reader.ready() == [2]
    bench.target("bad").report(Opened(0), Granted(10))
    bench.reader.wait(lambda: bench.reader.ready() == [2, 1])


def test_a_route_that_becomes_ready_while_one_of_its_entities_is_unavailable_again_is_paused_i1(bench: Bench) -> None:
    bench.system.silent.add("bad")
    bench.reader.open(1, _route(), waits=False)
    bench.reader.wait(lambda: any(each.name == "r" for each in bench.system.by_key.values()))
    bench.system.silent.add("r")
    bench.target("r").report(Opened(0), Granted(10), Lost(AWAY))
    bench.reader.wait(lambda: len(bench.reader.of(Kind.PAUSE)) == 1)
    bench.target("bad").report(Opened(0), Granted(10))
    bench.reader.wait(lambda: bench.reader.ready() == [1])
    bench.reader.wait(lambda: len(bench.reader.of(Kind.PAUSE)) == 2)
    assert bench.reader.of(Kind.PAUSE)[0] == bench.reader.of(Kind.PAUSE)[1]
    bench.target("r").report(Opened(0), Granted(10))
    bench.reader.wait(lambda: len(bench.reader.of(Kind.RESUME)) == 1)


def test_a_divert_target_that_is_unavailable_pauses_the_route_and_is_named_i1(bench: Bench) -> None:
    bench.reader.open(1, _route())
    bench.system.silent.update({"r", "bad"})
    bench.target("bad").report(Lost(AWAY))
    bench.reader.wait(lambda: len(bench.reader.of(Kind.PAUSE)) == 1)
    bench.target("r").report(Lost(AWAY))
    bench.reader.wait(lambda: len(bench.reader.of(Kind.PAUSE)) == 2)
    first, both = (unpack_json(each) for each in bench.reader.of(Kind.PAUSE))
    assert first == {"handle": 1, "text": "b: divert target b/bad: the connection was lost"}
    assert both["text"] == "b: divert target b/bad: the connection was lost; the connection was lost"
    bench.target("bad").report(Opened(0), Granted(10))
    bench.reader.wait(lambda: len(bench.reader.of(Kind.PAUSE)) == 3)
    assert unpack_json(bench.reader.of(Kind.PAUSE)[2])["text"] == "the connection was lost"
    assert not bench.reader.of(Kind.RESUME)
    bench.target("r").report(Opened(0), Granted(10))
    bench.reader.wait_kind(Kind.RESUME)


def test_a_divert_target_that_stays_away_fails_the_route_as_a_whole_i4(bench: Bench) -> None:
    bench.system.mute.update({"bad", "r"})
    bench.reader.open(1, _route(target_seconds=0.05))
    bench.rows(1, [1, 2], diverted=[3])
    bench.reader.wait_kind(Kind.FAILED)
    bench.system.wait(lambda: sorted(bench.system.closed) == [-1, 1])
    reported = bench.reader.failed()
    assert list(reported) == [1]
    assert not reported[1]["is_fatal"]
    bench.reader.close_handle(1)
    bench.system.mute.clear()
    bench.reader.open(2, _route(target_seconds=5.0))
    bench.rows(2, [1, 2], diverted=[3])
    assert bench.reader.wait_settled(2, 2) == [1, 2]
    assert bench.wait_diverted(1) == [3]
    assert len(bench.reader.of(Kind.FAILED)) == 1


def test_a_divert_target_that_does_not_answer_is_named_in_the_error(bench: Bench) -> None:
    bench.system.silent.add("bad")
    bench.reader.open(1, _route(target_seconds=0.05), waits=False)
    bench.reader.wait_kind(Kind.FAILED)
    error = bench.reader.failed()[1]["error"]
    assert error == "b: divert target b/bad: the target did not answer for 0.05 s"


@pytest.mark.parametrize("reported", [Lost(NOT_FOUND), Outcome(0, 0, NOT_FOUND)])
def test_a_divert_target_that_does_not_exist_fails_the_route_permanently(bench: Bench, reported: Any) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route())
    bench.rows(1, [], diverted=[3])
    bench.system.wait_received("bad", 1)
    bench.target("bad").report(reported)
    bench.reader.wait_kind(Kind.FAILED)
    assert bench.reader.failed()[1]["is_fatal"]
    assert not bench.reader.disposed()


def test_a_divert_target_that_cannot_be_made_fails_only_its_route(bench: Bench) -> None:
    route = spec("r", diverts={"b/bad": End("nonesuch", "b", {"entity": "bad"})})
    bench.reader.open(1, route, waits=False)
    bench.reader.wait_kind(Kind.FAILED)
    assert "unknown" in bench.reader.failed()[1]["error"]
    assert bench.system.closed == [1]
    bench.reader.open(2, _route("good"))
    bench.rows(2, [1], diverted=[2])
    bench.reader.wait_settled(2, 1)
    bench.wait_diverted(1)


def test_what_the_divert_target_refuses_is_dead_lettered_with_both_reasons(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route())
    bench.rows(1, [], diverted=[3])
    bench.system.wait_received("bad", 1)
    large = Refusal(RefusalKind.MESSAGE, "too-large", "too large", "MessageTooLarge")
    bench.target("bad").report(Outcome(0, 0, large))
    bench.reader.wait(bench.reader.disposed)
    (item,) = bench.reader.disposed()
    assert (item["handle"], item["first"], item["disposition"], item["reason"]) == (
        1,
        3,
        "dead-letter",
        "MessageTooLarge",
    )
    assert item["description"] == ("divert target b/bad: too-large: too large (ValidationFailed: step validate: at /n)")


def test_where_refusals_block_a_refused_diverted_message_blocks_the_route(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route(block_refused=True))
    bench.rows(1, [], diverted=[3])
    bench.system.wait_received("bad", 1)
    bench.target("bad").report(Outcome(0, 0, Refusal(RefusalKind.MESSAGE, "too-large", "too large", "MessageTooLarge")))
    text = unpack_json(bench.reader.wait_kind(Kind.PAUSE))["text"]
    assert text.startswith("b: divert target b/bad: message 3 is refused")
    assert not bench.reader.disposed()


def test_a_copy_that_is_stopped_in_transit_is_dead_lettered_and_not_dropped(bench: Bench) -> None:
    bench.reader.open(1, _route())
    visited = b"visited"  # the fake system completes such a message at its source
    bench.system.target(99, {"entity": "x"})
    route = bench.host._routes._diverting[1]
    route.part([(3, WHY, section.encode_message(visited))])
    route.dispose(-1, 3, Disposition("complete", "Visited", "it has been there"), "r")
    bench.host.flush(1)
    bench.reader.wait(bench.reader.disposed)
    (item,) = bench.reader.disposed()
    assert (item["disposition"], item["reason"]) == ("dead-letter", "Visited")
    assert item["description"].startswith("divert target b/bad: it has been there (ValidationFailed")


def test_a_message_that_cannot_be_read_is_dead_lettered_instead(bench: Bench) -> None:
    bench.reader.open(1, _route())
    bench.host.hand_over(1, [], b"", [0], (), [(3, WHY, b"unreadable")])
    bench.reader.wait(bench.reader.disposed)
    (item,) = bench.reader.disposed()
    assert (item["disposition"], item["reason"]) == ("dead-letter", "Malformed")
    assert "ValidationFailed" in item["description"]


def test_a_row_for_an_entity_that_the_route_does_not_have_fails_the_route(bench: Bench) -> None:
    for handle, route in ((1, _route()), (2, spec("plain"))):
        bench.reader.open(handle, route)
        bench.rows(handle, [1], diverted=[2], why=Disposition("divert:b/nowhere"))
    bench.reader.wait(lambda: len(bench.reader.failed()) == 2)
    for handle, name in ((1, "r"), (2, "plain")):
        reported = bench.reader.failed()[handle]
        assert reported == {"handle": handle, "error": str(DivertUnknownError(name, "b/nowhere")), "is_fatal": True}
    assert not bench.reader.settled(1)


def test_nothing_is_diverted_while_the_claim_is_not_held(bench: Bench) -> None:
    bench.reader.open(1, _route(claim="c"))
    bench.rows(1, [], diverted=[2])
    bench.reader.wait_kind(Kind.FAILED)
    assert "has not confirmed" in bench.reader.failed()[1]["error"]
    assert not bench.system.received
    bench.system.wait(lambda: sorted(bench.system.closed) == [-1, 1])


def test_a_claim_that_ends_closes_all_handles_of_its_routes(bench: Bench) -> None:
    bench.reader.fence("c", 0.3)
    bench.reader.open(1, _route(claim="c"))
    bench.reader.open(2, _route("s", claim="c"))
    bench.reader.wait(lambda: len(bench.reader.failed()) == 2)
    bench.system.wait(lambda: len(bench.system.closed) == 4)
    assert all("has not confirmed" in each["error"] for each in bench.reader.failed().values())


def test_a_closed_route_closes_its_divert_targets_and_settles_nothing(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route())
    bench.rows(1, [], diverted=[2])
    bench.system.wait_received("bad", 1)
    bench.reader.close_handle(1)
    bench.system.wait(lambda: sorted(bench.system.closed) == [-1, 1])
    bench.target("bad").report(Outcome(0, 0))
    bench.rows(1, [3], diverted=[4])
    bench.stop()
    bench.reader.wait_kind(Kind.END)
    assert not bench.reader.disposed()
    assert unpack_json(bench.reader.of(Kind.STATS)[-1])["dropped"] == 2


def test_the_end_waits_for_what_is_diverted(bench: Bench) -> None:
    bench.system.mute.add("bad")
    bench.reader.open(1, _route())
    bench.rows(1, [1], diverted=[2])
    bench.system.wait_received("bad", 1)
    bench.reader.wait_settled(1, 1)
    bench.reader.send(Kind.STOPPED)
    bench.target("bad").report(Outcome(0, 0))
    bench.host.finish()
    bench.reader.wait_kind(Kind.END)
    assert bench.diverted() == [(1, 2, "divert", "ValidationFailed")]


def test_clocks_are_those_of_the_source(bench: Bench) -> None:
    bench.reader.open(1, _route())
    bench.rows(1, [], diverted=[2], clock_offset_ms=5_000_000_000_000)
    bench.wait_diverted(1)
    assert bench.target("bad").clocks[0] > 5_000_000_000_000


def test_rows_of_a_diverting_route_are_counted_with_the_flush(bench: Bench) -> None:
    bench.reader.open(1, _route())
    bench.rows(1, [1, 2], diverted=[3])
    bench.host.flush(5)
    bench.reader.wait(bench.reader.flushed)
    assert bench.reader.flushed() == [(5, {1: 3})]
