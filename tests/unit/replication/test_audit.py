"""The reading for reconciliation is complete and true while messages move."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.amqp.types import Long
from isthmus.errors import EntityNotFoundError
from isthmus.replication import audit as audit_module
from isthmus.replication.audit import audit
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


class Entities:
    """Entities in memory; `moved` is called after each page of a reading, so that a test can move messages meanwhile."""

    def __init__(self) -> None:
        self.held: dict[str, list[bytes]] = {str(endpoint): [] for endpoint in AUDIT.values()}
        self.held |= {str(route.source): [] for route in ROUTES}
        self.next = 1
        self.opened: list[str] = []
        self.on_open: dict[str, list[tuple[str, str, int]]] = {}

    def put(self, place: str, number: int, *, origin: str = "", reason: str = "") -> None:
        properties: dict[str, object] = (
            {"repl-origin": f"{origin}/flights", "repl-sequence": str(number)} if origin else {}
        )
        if reason:
            properties["DeadLetterReason"] = reason
        annotations = {"x-opt-sequence-number": Long(self.next), "x-opt-enqueue-sequence-number": Long(number)}
        self.next += 1
        self.held.setdefault(place, []).append(
            section.encode_message(b"", annotations=annotations, application_properties=properties)
        )

    def peek(self, endpoint: Endpoint):
        place = str(endpoint)
        if place not in self.held:
            raise EntityNotFoundError(place)
        self.opened.append(place)

        def read(from_sequence: int, count: int) -> Sequence[bytes]:
            from isthmus.replication.identity import identify

            return [m for m in self.held[place] if identify(m).sequence >= from_sequence][:count]

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
