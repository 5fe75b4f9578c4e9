"""Flows of other patterns than all-active: queues, chains, filters, copies that expire, contents that change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.errors import EntityNotFoundError
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.audit.unkept import MOST_LISTED, numbered
from isthmus.replication.verification.ground import ground_of
from isthmus.replication.verification.identity import Members, identify
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Flow, Route

DEAD = "/$DeadLetterQueue"


def route(source: str, target: str) -> Route:
    return Route(name=f"{source}>{target}", task="t", pattern="p", source=end(source), targets=(end(target),))


def end(text: str) -> Endpoint:
    alias, _, entity = text.partition("/")
    return Endpoint(alias, entity)


def flow(origin: str, target: str, *routes: Route, witness: str = "", **more: object) -> Flow:
    kept = end(witness) if witness else Endpoint(end(origin).alias, "")
    more = {"target_is_consumed": False} | more
    return Flow(origin=end(origin), witness=kept, target=end(target), routes=tuple(r.name for r in routes), **more)


class Entities:
    """Entities in memory."""

    def __init__(self, *names: str) -> None:
        self.contents: dict[str, list[bytes]] = {name: [] for name in names}
        self.moves: dict[str, list[tuple[str, int, str]]] = {}

    def put(
        self, path: str, number: int, *hops: tuple[str, int], body: bytes = b"", at_ms: int = 1, sequence: int = 0
    ) -> None:
        """A message under a number; `hops`: entity and number of each that it was copied from."""
        own: dict[str, object] = {}
        if hops:
            columns = [(name, name.partition("/")[0], str(at), str(at), "x") for name, at in hops]
            own = {
                name: ";".join(values) for name, values in zip(HOP_PROPERTIES, zip(*columns, strict=True), strict=True)
            }
            own[DIGEST] = digest(b"", body)
        messages = self.contents.setdefault(path, [])
        annotations = {
            Symbol("x-opt-sequence-number"): Long(sequence or len(messages) + 1),
            Symbol("x-opt-enqueue-sequence-number"): Long(number),
            Symbol("x-opt-enqueued-time"): Timestamp(at_ms),
        }
        messages.append(section.encode_message(body, annotations=annotations, application_properties=own))

    def peek(self, endpoint: Endpoint):
        name = str(endpoint)
        if name not in self.contents:
            raise EntityNotFoundError(name)

        def look(start: int, count: int) -> Sequence[bytes]:
            found = [message for message in self.contents[name] if identify(message).sequence >= start][:count]
            for target, number, hop in self.moves.pop(name, ()):
                self.put(target, number, (hop, number))
            return found

        return look

    def audit(self, *flows: Flow, routes: Sequence[Route], now_ms: int = 10) -> Reconciliation:
        ground = ground_of(flows, {each.name: each for each in routes})
        labels = {(each.alias, each.entity.lower()): label for each, label in ground.origins.items()}
        return audit(
            "t",
            routes,
            ground.entities,
            self.peek,
            passages=ground.passages,
            shared=ground.shared,
            ttl_ms=ground.ttl_ms,
            members=Members(labels),
            clock=ManualClock(now_ms),
        )


def counts(result: Reconciliation, *names: str) -> dict[str, int]:
    return {name: result.total(name) for name in names}


MOVE = route("ewr/orders", "jfk/orders")


def moved(*numbers: int) -> Entities:
    entities = Entities("ewr/orders", "jfk/orders")
    for number in numbers:
        entities.put("jfk/orders", number, ("ewr/orders", number))
    return entities


def test_a_queue_that_its_route_empties_is_reported_by_its_numbers() -> None:
    entities = moved(1, 2, 4, 5)
    entities.put("ewr/orders", 7)
    entities.put(f"ewr/orders{DEAD}", 6)
    result = entities.audit(flow("ewr/orders", "jfk/orders", MOVE), routes=[MOVE])
    found = counts(result, "entered", "arrived", "waiting", "dead_lettered", "lost", "consumed")
    assert found == {"entered": 7, "arrived": 4, "waiting": 1, "dead_lettered": 1, "lost": 1, "consumed": 0}
    assert [each.samples["lost"] for each in result.comparisons if each.origin != each.member] == [(3,)]
    assert result.verdict is Verdict.FAULTY


@pytest.mark.parametrize("end_name", ["origin_is_consumed", "target_is_consumed"])
def test_what_is_missing_may_have_been_consumed_where_applications_consume(end_name: str) -> None:
    result = moved(1, 3).audit(flow("ewr/orders", "jfk/orders", MOVE, **{end_name: True}), routes=[MOVE])
    assert counts(result, "consumed", "lost") == {"consumed": 1, "lost": 0}
    assert result.verdict is Verdict.UNCLEAR


def test_a_queue_that_was_moved_whole_is_clean_and_doubles_and_order_are_reported() -> None:
    assert moved(1, 2, 3).audit(flow("ewr/orders", "jfk/orders", MOVE), routes=[MOVE]).clean
    result = moved(1, 3, 2, 2).audit(flow("ewr/orders", "jfk/orders", MOVE), routes=[MOVE])
    assert counts(result, "arrived", "lost", "duplicated", "out_of_order") == {
        "arrived": 3,
        "lost": 0,
        "duplicated": 1,
        "out_of_order": 1,
    }


def test_what_came_before_the_lowest_known_number_is_reported() -> None:
    result = moved(5, 6).audit(flow("ewr/orders", "jfk/orders", MOVE), routes=[MOVE])
    assert result.total("lost") == 0
    assert result.verdict is Verdict.UNCLEAR
    assert "4 messages entered ewr before" in result.unread[0]


def test_i1_numbers_are_those_of_each_fragment() -> None:
    fragment = 1 << 48
    assert numbered([1, 3, fragment + 1], [1, 3, fragment + 1]) == ([1, 2, 3, fragment + 1], 0, [])
    assert numbered([2, 3, 9, -1], [2, 3]) == ([2, 3], 1, [])


def test_i3_the_longest_gaps_are_reported_and_not_listed() -> None:
    fragment = 1 << 48
    known = [1, 4, 30, fragment + 7, fragment + 9]
    assert numbered(known, known, 3) == ([*range(1, 5), 30, fragment + 7, fragment + 8, fragment + 9], 6, [(5, 29)])
    assert numbered(known, known, 2)[2] == [(2, 3), (5, 29)]
    assert numbered([*known, 10**12], known) == (
        [*range(1, 31), *range(fragment + 7, fragment + 10)],
        6,
        [],
    ), "a number that no message before the reading had names no gap"
    result = moved(1, 2, MOST_LISTED * 3).audit(flow("ewr/orders", "jfk/orders", MOVE), routes=[MOVE])
    assert result.verdict is Verdict.UNCLEAR
    assert counts(result, "arrived", "lost") == {"arrived": 3, "lost": 0}
    assert "no message of ewr is known from number 3 to 2,999,999" in result.unread[0]


def test_i1_a_message_that_moves_through_a_chain_meanwhile_is_met_further_on() -> None:
    first, second = route("ewr/in/Subscriptions/r", "hub/in"), route("hub/in/Subscriptions/r", "jfk/in")
    entities = Entities(
        "ewr/in/Subscriptions/audit", str(first.source), str(second.source), "jfk/in/Subscriptions/audit"
    )
    for number in range(1, 6):
        entities.put("ewr/in/Subscriptions/audit", number)
    entities.put("jfk/in/Subscriptions/audit", 7, ("ewr/in", 1), ("hub/in", 7))
    entities.put(str(second.source), 8, ("ewr/in", 2))
    entities.put(str(first.source), 3)
    entities.put(f"{second.source}{DEAD}", 9, ("ewr/in", 4))
    entities.moves[str(first.source)] = [(str(second.source), 5, "ewr/in")]
    chained = flow("ewr/in", "jfk/in/Subscriptions/audit", first, second, witness="ewr/in/Subscriptions/audit")
    result = entities.audit(chained, routes=[first, second])
    found = counts(result, "entered", "arrived", "waiting", "dead_lettered", "lost")
    assert found == {"entered": 5, "arrived": 1, "waiting": 3, "dead_lettered": 1, "lost": 0}


def test_a_queue_divided_by_filters_misses_a_number_once_and_cannot_decide() -> None:
    east, west = route("ewr/all/Subscriptions/e", "jfk/east"), route("ewr/all/Subscriptions/w", "jfk/west")
    entities = Entities(str(east.source), str(west.source), "jfk/east", "jfk/west")
    for number in (1, 3):
        entities.put("jfk/east", number, ("ewr/all", number))
    for number in (2, 5):
        entities.put("jfk/west", number, ("ewr/all", number))
    flows = [
        flow("ewr/all", "jfk/east", east, filter="x = 1"),
        flow("ewr/all", "jfk/west", west, filter="x = 2"),
    ]
    result = entities.audit(*flows, routes=[east, west])
    assert counts(result, "entered", "arrived", "consumed", "lost") == {
        "entered": 5,
        "arrived": 4,
        "consumed": 1,
        "lost": 0,
    }
    assert {each.member for each in result.comparisons} == {"ewr", "jfk/east", "jfk/west"}


COPY = route("ewr/in/Subscriptions/r", "jfk/in")
KEPT = "ewr/in/Subscriptions/audit"


@pytest.mark.parametrize(
    ("present", "is_shown"),
    [
        pytest.param([3], True, id="of both the number is absent"),
        pytest.param([2], False, id="one was never there"),
        pytest.param([], False, id="nothing tells"),
    ],
)
def test_a_copy_whose_time_is_over_is_expired_only_where_the_target_shows_that_it_was_there(
    present: list[int], is_shown: bool
) -> None:
    entities = Entities(KEPT, str(COPY.source), "jfk/in/Subscriptions/audit")
    for number, at_ms in ((1, 1_000), (2, 1_000), (3, 900_000), (4, 910_000)):
        entities.put(KEPT, number, at_ms=at_ms)
    for sequence in present:
        entities.put("jfk/in/Subscriptions/audit", sequence, ("ewr/in", 3), at_ms=900_000, sequence=sequence)
    going = flow("ewr/in", "jfk/in/Subscriptions/audit", COPY, witness=KEPT, expires_ms=60_000)
    result = entities.audit(going, routes=[COPY], now_ms=930_000)
    found = counts(result, "copy_expired", "consumed", "lost")
    lost = 1 if present else 2
    assert found == {"copy_expired": 2 * is_shown, "consumed": 2 * (not is_shown), "lost": lost}


@pytest.mark.parametrize("changes", [True, False])
def test_contents_that_steps_change_are_not_compared(changes: bool) -> None:
    entities = Entities(KEPT, str(COPY.source), "jfk/orders")
    entities.put(KEPT, 1, body=b"before")
    entities.put("jfk/orders", 1, ("ewr/in", 1), body=b"after")
    result = entities.audit(flow("ewr/in", "jfk/orders", COPY, witness=KEPT, changes=changes), routes=[COPY])
    assert (result.total("arrived"), result.total("unequal")) == ((1, 0) if changes else (0, 1))


def test_a_target_alone_is_no_origin_and_entities_of_one_namespace_are_distinguished() -> None:
    within = route("ewr/a/Subscriptions/r", "ewr/b")
    entities = Entities("ewr/a/Subscriptions/audit", str(within.source), "ewr/b")
    entities.put("ewr/a/Subscriptions/audit", 1)
    entities.put("ewr/b", 1, ("ewr/a", 1))
    entities.put("ewr/b", 2)  # an application's own
    result = entities.audit(flow("ewr/a", "ewr/b", within, witness="ewr/a/Subscriptions/audit"), routes=[within])
    assert [(each.origin, each.member) for each in result.comparisons] == [("ewr/a", "ewr/a"), ("ewr/a", "ewr/b")]
    assert counts(result, "entered", "arrived", "lost", "unknown") == {
        "entered": 1,
        "arrived": 1,
        "lost": 0,
        "unknown": 0,
    }
    assert result.clean


def test_what_the_namespace_forwards_keeps_its_number() -> None:
    entities = Entities("ewr/end")
    for number in (1, 2, 4):
        entities.put("ewr/end", number)
    result = entities.audit(flow("ewr/entry", "ewr/end"), routes=[])
    assert counts(result, "entered", "arrived", "lost") == {"entered": 4, "arrived": 3, "lost": 1}


ARCHIVED = Route(
    name="kept", task="t", pattern="archive", source=end("ewr/orders"), targets=(end("table:/lake/orders"),)
)


def archived(*numbers: int) -> Entities:
    entities = Entities("ewr/orders", "table:/lake/orders")
    for number in numbers:
        entities.put("table:/lake/orders", number)
    return entities


def test_a_queue_that_is_kept_in_a_table_is_reported_by_its_numbers() -> None:
    entities = archived(1, 2, 4, 5)
    entities.put("ewr/orders", 7)
    entities.put(f"ewr/orders{DEAD}", 6)
    result = entities.audit(flow("ewr/orders", "table:/lake/orders", ARCHIVED), routes=[ARCHIVED])
    found = counts(result, "entered", "arrived", "waiting", "dead_lettered", "lost", "consumed")
    assert found == {"entered": 7, "arrived": 4, "waiting": 1, "dead_lettered": 1, "lost": 1, "consumed": 0}
    assert result.verdict is Verdict.FAULTY


def test_a_row_that_appears_twice_is_reported() -> None:
    result = archived(1, 2, 2, 3).audit(flow("ewr/orders", "table:/lake/orders", ARCHIVED), routes=[ARCHIVED])
    assert counts(result, "arrived", "duplicated", "lost") == {"arrived": 3, "duplicated": 1, "lost": 0}


def test_a_topic_that_is_kept_in_a_table_is_compared_with_its_audit_subscription() -> None:
    entities = archived(1, 3, 4)
    for number in (1, 2, 3, 4):
        entities.put("ewr/orders/Subscriptions/audit", number)
    reported = flow("ewr/orders", "table:/lake/orders", ARCHIVED, witness="ewr/orders/Subscriptions/audit")
    result = entities.audit(reported, routes=[ARCHIVED], now_ms=10_000_000)
    assert counts(result, "entered", "arrived", "lost") == {"entered": 4, "arrived": 3, "lost": 1}
    entities.put("table:/lake/orders", 2, body=b"another content")
    result = entities.audit(reported, routes=[ARCHIVED], now_ms=10_000_000)
    assert result.verdict is Verdict.FAULTY


def test_a_table_that_has_everything_is_clean() -> None:
    result = archived(1, 2, 3).audit(flow("ewr/orders", "table:/lake/orders", ARCHIVED), routes=[ARCHIVED])
    assert result.verdict is Verdict.CLEAN
    assert result.clean
