"""The reading for reconciliation is complete and true while messages move."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.errors import EntityNotFoundError
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.replication import audit as audit_module
from isthmus.replication.audit import audit
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Route

AUDIT = {alias: Endpoint(alias, "flights/Subscriptions/audit") for alias in ("ewr", "jfk")}
ROUTES = [
    Route(
        name=f"flights.{source}.{target}",
        task="flights",
        pattern="all-active",
        source=Endpoint(source, f"flights/Subscriptions/isthmus.flights.{target}"),
        targets=(Endpoint(target, "flights"),),
    )
    for source, target in (("ewr", "jfk"), ("jfk", "ewr"))
]


def copied(origin: str, number: int, message_id: str) -> dict[str, object]:
    """The provenance of a copy without a body."""
    hop = (f"{origin}/flights", origin, str(number), str(number), "2026-01-01T00:00:00.000Z")
    return {**dict(zip(HOP_PROPERTIES, hop, strict=True)), DIGEST: digest(message_id.encode(), b"")}


class Entities:
    """Entities in memory; `moved` is called after each page of a reading, so that a test can move messages meanwhile."""

    def __init__(self) -> None:
        self.held: dict[str, list[bytes]] = {str(endpoint): [] for endpoint in AUDIT.values()}
        self.held |= {str(route.source): [] for route in ROUTES}
        self.next = 1
        self.opened: list[str] = []
        self.on_open: dict[str, list[tuple[str, str, int]]] = {}

    def put(
        self,
        place: str,
        number: int,
        *,
        origin: str = "",
        reason: str = "",
        message_id: str = "",
        at_ms: int = 0,
        ttl_ms: int | None = None,
        own: dict[str, object] | None = None,
    ) -> None:
        properties: dict[str, object] = dict(own or {})
        if origin:
            properties |= copied(origin, number, message_id)
        if reason:
            properties["DeadLetterReason"] = reason
        annotations = {
            Symbol("x-opt-sequence-number"): Long(self.next),
            Symbol("x-opt-enqueue-sequence-number"): Long(number),
            Symbol("x-opt-enqueued-time"): Timestamp(at_ms),
        }
        self.next += 1
        self.held.setdefault(place, []).append(
            section.encode_message(
                b"",
                header=Header(ttl_ms=ttl_ms),
                annotations=annotations,
                properties={"message_id": message_id} if message_id else {},
                application_properties=properties,
            )
        )

    def peek(self, endpoint: Endpoint):
        place = str(endpoint)
        if place not in self.held:
            raise EntityNotFoundError(place)
        self.opened.append(place)

        def read(from_sequence: int, count: int) -> Sequence[bytes]:
            from isthmus.replication.identity import identify

            standing = sorted(self.held[place], key=lambda message: identify(message).sequence)
            return [m for m in standing if identify(m).sequence >= from_sequence][:count]

        return read


def test_every_fate_is_told() -> None:
    entities = Entities()
    for number in range(1, 7):
        entities.put("ewr/flights/Subscriptions/audit", number)
    for number in (1, 2):
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk", 3)
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue", 4, reason="TTLExpiredException")
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue", 5, reason="MaxDeliveryCountExceeded")
    result = audit("flights", ROUTES, AUDIT, entities.peek).to_dict()
    counts = [result[kind] for kind in ("entered", "arrived", "waiting", "expired", "dead_lettered", "lost")]
    assert counts == [6, 2, 1, 1, 1, 1]


def test_a_message_that_moves_during_the_reading_is_not_lost() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    opener = entities.peek

    def moving(endpoint: Endpoint):
        if endpoint == ROUTES[0].source:
            # It left the route's source after the target was read for the first time.
            entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
        return opener(endpoint)

    result = audit("flights", ROUTES, AUDIT, moving)
    assert result.clean
    assert result.total("arrived") == 1


def test_i2_what_enters_later_is_ignored_everywhere() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    opener = entities.peek

    def moving(endpoint: Endpoint):
        if endpoint == ROUTES[0].source:
            entities.put("ewr/flights/Subscriptions/audit", 2)
            entities.put("jfk/flights/Subscriptions/audit", 2, origin="ewr")
        return opener(endpoint)

    result = audit("flights", ROUTES, AUDIT, moving).to_dict()
    assert (result["entered"], result["arrived"], result["unknown"], result["clean"]) == (1, 1, 0, True)


def test_a_reading_of_many_pages_keeps_the_order(monkeypatch) -> None:
    monkeypatch.setattr(audit_module, "PAGE_MESSAGES", 7)
    entities = Entities()
    for number in range(1, 51):
        entities.put("ewr/flights/Subscriptions/audit", number)
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    shown: list[str] = []
    result = audit("flights", ROUTES, AUDIT, entities.peek, on_message=lambda alias, _: shown.append(alias))
    assert result.clean
    assert result.total("arrived") == 50
    assert shown.count("ewr") == shown.count("jfk") == 50


WINDOWS_MS = {"ewr": 60_000, "jfk": 60_000}


def test_copies_that_detection_dropped_for_an_equal_are_not_lost() -> None:
    """A publisher sent every message to both members under one MessageId; each drops the other's copy."""
    entities = Entities()
    for alias in ("ewr", "jfk"):
        for number in (1, 2, 3):
            entities.put(f"{alias}/flights/Subscriptions/audit", number, message_id=f"m{number}", at_ms=1000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("dropped"), result.total("lost"), result.clean) == (6, 0, True)
    assert result.comparisons[1].samples == {"dropped": (1, 2, 3)}


def test_without_detection_or_an_equal_in_time_what_is_missing_is_lost() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, message_id="equal", at_ms=70_001)
    entities.put("ewr/flights/Subscriptions/audit", 2, message_id="equal in time", at_ms=70_000)
    entities.put("ewr/flights/Subscriptions/audit", 3, message_id="alone", at_ms=1000)
    entities.put("ewr/flights/Subscriptions/audit", 4, at_ms=1000)
    entities.put("jfk/flights/Subscriptions/audit", 7, message_id="equal", at_ms=10_000)
    entities.put("jfk/flights/Subscriptions/audit", 8, message_id="equal in time", at_ms=10_000)
    entities.put("jfk/flights/Subscriptions/audit", 9, at_ms=1000)
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk", 5)
    for number in (7, 8, 9):
        entities.put("jfk/flights/Subscriptions/isthmus.flights.ewr", number)
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    there = next(each for each in result.comparisons if (each.origin, each.member) == ("ewr", "jfk"))
    assert (there.dropped, there.lost, there.samples["lost"]) == (1, 3, (1, 3, 4))
    assert not result.clean
    off = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms={"ewr": 60_000, "jfk": 0})
    assert (off.total("dropped"), off.total("lost")) == (0, 4)


def test_a_message_is_no_equal_of_itself() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, message_id="m", at_ms=1000)
    entities.put("ewr/flights/Subscriptions/audit", 1, origin="jfk", message_id="m", at_ms=1000)
    entities.put("jfk/flights/Subscriptions/audit", 1, message_id="n", at_ms=1000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("dropped"), result.total("lost")) == (0, 1)


def test_of_two_equals_the_one_that_came_first_explains_the_other() -> None:
    entities = Entities()
    for number in (1, 2):
        entities.put("ewr/flights/Subscriptions/audit", number, message_id="m", at_ms=1000 * number)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr", message_id="m", at_ms=1500)
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("arrived"), result.total("dropped"), result.total("lost")) == (1, 1, 0)


def test_i3_what_ended_its_life_while_it_was_read_has_expired() -> None:
    entities = Entities()
    clock = ManualClock()
    now_ms = clock.wall_ms()
    entities.put("ewr/flights/Subscriptions/audit", 1, at_ms=now_ms - 60_000, ttl_ms=30_000)
    entities.put("ewr/flights/Subscriptions/audit", 2, at_ms=now_ms - 60_000, ttl_ms=300_000)
    entities.put("ewr/flights/Subscriptions/audit", 3, at_ms=now_ms - 60_000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, clock=clock)
    assert (result.total("expired"), result.total("lost")) == (1, 2)
    assert result.comparisons[1].samples == {"lost": (2, 3)}


def test_i4_what_is_not_replicated_is_not_missed() -> None:
    entities = Entities()
    for number, own in enumerate(({}, {"stays": True}), 1):
        entities.put("ewr/flights/Subscriptions/audit", number, own=own)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    result = audit("flights", ROUTES, AUDIT, entities.peek, selects=lambda message, _: b"stays" not in message)
    assert (result.total("lost"), result.total("unknown"), result.clean) == (0, 0, True)
    assert result.to_dict()["entered"] == 1


def test_where_no_order_is_promised_its_lack_is_no_fault() -> None:
    entities = Entities()
    for number in (1, 2):
        entities.put("ewr/flights/Subscriptions/audit", number)
    for number in (2, 1):
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    assert not audit("flights", ROUTES, AUDIT, entities.peek).clean
    result = audit("flights", ROUTES, AUDIT, entities.peek, ordered=False)
    assert (result.total("out_of_order"), result.clean) == (1, True)


def test_a_message_of_which_nobody_can_read_all_stops_no_reading() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, message_id="text", at_ms=1000)
    entities.put("jfk/flights/Subscriptions/audit", 9, message_id="text", at_ms=1000)
    entities.put("jfk/flights/Subscriptions/isthmus.flights.ewr", 9)
    for held in entities.held.values():
        held[:] = [message.replace(b"text", b"\xff\xff\xff\xff") for message in held]
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("lost"), result.total("dropped")) == (0, 1)


def test_of_a_partitioned_topic_every_fragment_is_read_on() -> None:
    """Sequence numbers have the fragment in their top 16 bits: what comes to a lower one later has a lower number."""
    entities = Entities()
    entities.next = (1 << 48) + 1
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 70)
    entities.next = (2 << 48) + 1
    entities.put("ewr/flights/Subscriptions/audit", 2)
    entities.put("jfk/flights/Subscriptions/audit", 2, origin="ewr")
    entities.put("ewr/flights/Subscriptions/audit", 70, origin="jfk")
    opener = entities.peek

    def moving(endpoint: Endpoint):
        if endpoint == ROUTES[0].source:
            entities.next = (1 << 48) + 9
            entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
        return opener(endpoint)

    result = audit("flights", ROUTES, AUDIT, moving, ordered=False)
    assert (result.total("arrived"), result.total("lost"), result.total("duplicated")) == (3, 0, 0)
