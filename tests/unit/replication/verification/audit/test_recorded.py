"""isthmus.replication.verification.audit.recorded: origins without numbers, whose messages are identified by their content."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.identity import Members
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.topology.model import Endpoint, PlainOptions, Route, RouteOptions

LGA, EWR = Endpoint("lga", "isthmus.flights.$audit"), Endpoint("ewr", "flights/Subscriptions/audit")


def route(source: str, target: str, **options: object) -> Route:
    reads = PlainOptions(reads=True, reads_topic=True, subscription=f"isthmus.flights.{target}")
    return Route(
        name=f"flights.{source}.{target}",
        task="flights",
        pattern="all-active",
        source=Endpoint(source, "flights"),
        targets=(Endpoint(target, "flights"),),
        options=RouteOptions(plain=reads if source == "lga" else PlainOptions(), **options),  # type: ignore[arg-type]
    )


class World:
    """Two members: `lga`, whose record numbers by offset from 0, and `ewr`."""

    def __init__(self) -> None:
        self.contents: dict[Endpoint, list[bytes]] = {LGA: [], EWR: []}
        self.unsettled = 0
        self.pauses: list[float] = []
        self.on_pause: Callable[[], None] = lambda: None
        self.at_first: list[int] = []

    def put(
        self,
        at: Endpoint,
        body: bytes,
        *,
        copy: bool = False,
        message_id: str = "",
        ttl_ms: int | None = None,
        hour: int = 0,
    ) -> None:
        messages = self.contents[at]
        own: dict[str, object] = {}
        if copy:
            # The number is one of the route's own, which no record knows.
            hop = ("lga/flights", "lga", "987654321", "987654321", f"2026-01-01T{hour:02d}:00:00.000Z")
            own = {**dict(zip(HOP_PROPERTIES, hop, strict=True)), DIGEST: digest(message_id.encode(), body)}
        annotations = {
            Symbol("x-opt-sequence-number"): Long(len(messages) + (at == EWR)),
            Symbol("x-opt-enqueued-time"): Timestamp(0 if at == LGA else 1_000),
        }
        messages.append(
            section.encode_message(
                body,
                header=Header(ttl_ms=ttl_ms),
                annotations=annotations,
                properties={"message_id": message_id} if message_id else {},
                application_properties=own,
            )
        )

    def peek(self, endpoint: Endpoint) -> Callable[[int, int], Sequence[bytes]]:
        contents = self.contents[endpoint]
        first = 0 if endpoint == LGA else 1
        return lambda start, count: contents[max(0, start - first) :][:count]

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()

    def audit(self, *, refused: str = "block") -> Reconciliation:
        routes = [route("lga", "ewr", refused=refused)]
        passage = Passage(origin="lga", member="ewr", routes=(routes[0],), by_content=True)
        return audit(
            "flights",
            routes,
            {"ewr": EWR, "lga": LGA},  # the copies are read before their originals
            self.peek,
            passages=[passage],
            members=Members({("lga", "flights"): "lga", ("ewr-id", "flights"): "ewr"}),
            logs={"lga": False},
            unsettled=lambda _: self.unsettled,
            pause=self.pause,
            by_hour=True,
        )


def counts(result: Reconciliation) -> dict[str, int]:
    names = ("entered", "arrived", "waiting", "lost", "duplicated", "out_of_order", "consumed", "forged", "unknown")
    return {name: total for name in names if (total := result.total(name))}


@pytest.fixture
def world() -> World:
    return World()


def test_every_copy_is_known_by_what_it_holds(world: World) -> None:
    for number in range(5):
        world.put(LGA, b"%d" % number, message_id=f"m{number}")
    for number in range(5):
        world.put(EWR, b"%d" % number, message_id=f"m{number}", copy=True)
    result = world.audit()
    assert counts(result) == {"entered": 5, "arrived": 5}
    assert result.clean
    assert not world.pauses


def test_the_record_shows_no_time_and_copies_show_when_their_route_received_them(world: World) -> None:
    for number in (0, 1, 2, 3, 1, 4, 5):
        world.put(LGA, b"%d" % number)
    for number, hour in ((0, 5), (1, 5), (3, 5), (1, 6)):  # 2 is lost, and so are 4 and 5, behind all that is known
        world.put(EWR, b"%d" % number, copy=True, hour=hour)
    (compared,) = (each for each in world.audit().comparisons if each.member == "ewr" != each.origin)
    assert {each.name: (each.counts["arrived"], each.counts["lost"]) for each in compared.hours or ()} == {
        "2026-01-01T05:00:00Z": (3, 1),
        "2026-01-01T06:00:00Z": (1, 0),
        "unknown": (0, 2),
    }


def test_what_is_missing_is_lost_once_a_later_count_does_not_know_it(world: World) -> None:
    """I2"""
    for number in range(5):
        world.put(LGA, b"%d" % number)
    for number in (0, 2, 4):
        world.put(EWR, b"%d" % number, copy=True)
    assert counts(world.audit()) == {"entered": 5, "arrived": 3, "lost": 2}
    assert len(world.pauses) == 1


def test_what_waits_or_is_with_the_consumer_is_not_lost(world: World) -> None:
    """I2"""
    for number in range(5):
        world.put(LGA, b"%d" % number)
    for number in range(3):
        world.put(EWR, b"%d" % number, copy=True)
    world.unsettled = 2
    assert counts(world.audit()) == {"entered": 5, "arrived": 3, "waiting": 2}
    world.unsettled = 1
    assert counts(world.audit()) == {"entered": 5, "arrived": 3, "waiting": 1, "lost": 1}


def test_what_is_missing_is_not_hidden_by_a_count_from_before_it_was_moved(world: World) -> None:
    """I2"""
    for number in range(3):
        world.put(LGA, b"%d" % number)
    world.put(EWR, b"0", copy=True)
    world.unsettled = 2

    def moved() -> None:
        world.unsettled = 0

    world.on_pause = moved
    assert counts(world.audit()) == {"entered": 3, "arrived": 1, "lost": 2}


def test_what_arrives_while_a_count_is_waited_for_is_not_lost(world: World) -> None:
    """I2"""
    for number in range(3):
        world.put(LGA, b"%d" % number)
    world.on_pause = lambda: [world.put(EWR, b"%d" % each, copy=True) for each in range(3)] and None
    assert counts(world.audit()) == {"entered": 3, "arrived": 3}


def test_equal_messages_are_counted(world: World) -> None:
    """I1"""
    for _ in range(3):
        world.put(LGA, b"same", message_id="m")
    for _ in range(2):
        world.put(EWR, b"same", message_id="m", copy=True)
    assert counts(world.audit()) == {"entered": 3, "arrived": 2, "lost": 1}
    for _ in range(2):
        world.put(EWR, b"same", message_id="m", copy=True)
    assert counts(world.audit()) == {"entered": 3, "arrived": 3, "duplicated": 1}


def test_a_second_copy_and_a_late_one_are_reported(world: World) -> None:
    for number in range(3):
        world.put(LGA, b"%d" % number)
    for number in (1, 0, 2, 2):
        world.put(EWR, b"%d" % number, copy=True)
    assert counts(world.audit()) == {"entered": 3, "arrived": 3, "duplicated": 1, "out_of_order": 1}


def test_a_copy_of_other_contents_is_no_arrival(world: World) -> None:
    """I3"""
    world.put(LGA, b"sent")
    world.put(EWR, b"changed", copy=True)
    result = world.audit()
    assert counts(result) == {"entered": 1, "lost": 1, "forged": 1}
    assert not result.clean


def test_what_may_have_been_rejected_or_expired_is_not_called_lost(world: World) -> None:
    world.put(LGA, b"0")
    world.put(LGA, b"1", ttl_ms=1000)
    assert counts(world.audit()) == {"entered": 2, "consumed": 1, "lost": 1}
    assert counts(world.audit(refused="dead-letter")) == {"entered": 2, "consumed": 2}


def test_what_enters_during_the_reading_is_left_out(world: World) -> None:
    world.put(LGA, b"0")
    world.put(EWR, b"0", copy=True)
    opened = world.peek

    def peek(endpoint: Endpoint) -> Callable[[int, int], Sequence[bytes]]:
        look, calls = opened(endpoint), [0]

        def page(start: int, count: int) -> Sequence[bytes]:
            calls[0] += 1
            found = look(start, count)
            if endpoint == LGA and not found and calls[0] == 2:  # the first reading of the record has ended
                world.put(LGA, b"late")
                world.put(EWR, b"late", copy=True)
            return found

        return page

    world.peek = peek  # type: ignore[method-assign]
    assert counts(world.audit()) == {"entered": 1, "arrived": 1}
