"""How an audit finds the time at which messages entered their origins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fixture.audit_entities import AUDIT, ROUTES, Entities, copied
from isthmus.amqp import section
from isthmus.message.name import HOP_PROPERTIES
from isthmus.replication.verification.audit import passage
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.hour.hour import HOUR_MS, HourCounts
from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.topology.model import TABLE, Endpoint

EWR, JFK = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
SOURCE = str(ROUTES[0].source)
DEAD = f"{SOURCE}/$DeadLetterQueue"
QUEUE = passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0],), is_witnessed=False)


def hours(result: Reconciliation, *kinds: str, member: str = "jfk") -> Mapping[str, tuple[int, ...]]:
    """By hour of 1 January 2026, or `unknown`, counts of what entered at ewr."""
    (compared,) = (each for each in result.comparisons if (each.origin, each.member) == ("ewr", member))
    assert compared.hours is not None
    for name in (count.name for count in COUNTS):
        assert sum(each.counts[name] for each in compared.hours) == compared.counts[name]
    return {each.name[11:13] or each.name: tuple(each.counts[kind] for kind in kinds) for each in compared.hours}


def at(hour: int) -> int:
    """Wall time of 1 January 2026."""
    return 1_767_225_600_000 + hour * HOUR_MS + 60_000


def copy(entities: Entities, number: int, hour: int, **more: object) -> None:
    """A copy at jfk of what entered ewr."""
    reported = {**copied("ewr", number, ""), HOP_PROPERTIES[-1]: f"2026-01-01T{hour:02d}:01:00.000Z"}
    entities.put(JFK, number, own=reported, at_ms=at(hour + 1), **more)  # type: ignore[arg-type]


def test_what_is_lost_of_a_topic_is_reported_in_the_hour_in_which_it_entered() -> None:
    entities = Entities()
    for number in range(1, 31):
        entities.put(EWR, number, at_ms=at(number // 10))
        if number not in (12, 13, 17):
            copy(entities, number, number // 10)
    result = audit("flights", ROUTES, AUDIT, entities.peek, by_hour=True)
    assert hours(result, "entered", "arrived", "lost") == {
        "00": (9, 9, 0),
        "01": (10, 7, 3),
        "02": (10, 10, 0),
        "03": (1, 1, 0),
    }
    assert [(each.name, each.counts["lost"]) for each in result.hours if each.counts["lost"]] == [
        ("2026-01-01T01:00:00Z", 3)
    ]
    assert result.verdict is Verdict.FAULTY


def test_hours_are_given_only_where_asked_for() -> None:
    entities = Entities()
    entities.put(EWR, 1, at_ms=at(1))
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert (result.hours, result.by_hour, "hours" in result.to_dict()) == ((), False, False)


def test_what_a_task_leaves_where_it_is_has_the_hour_in_which_it_entered() -> None:
    entities = Entities()
    for number, hour in ((1, 1), (2, 2), (3, 2)):
        entities.put(EWR, number, at_ms=at(hour))
    result = audit(
        "flights",
        ROUTES,
        AUDIT,
        entities.peek,
        by_hour=True,
        selects=lambda message, identity: "filtered" if identity.number < 3 else "",
    )
    assert hours(result, "filtered", "entered", member="ewr") == {"01": (1, 0), "02": (1, 1)}


def test_a_dead_letter_whose_original_was_removed_has_its_own_time() -> None:
    entities = Entities()
    entities.put(EWR, 9, at_ms=at(9))
    copy(entities, 9, 9)
    entities.put(DEAD, 3, reason="MaxDeliveryCountExceeded", at_ms=at(3))
    entities.put(DEAD, 4, reason="TTLExpiredException", at_ms=at(4))
    result = audit("flights", ROUTES, AUDIT, entities.peek, by_hour=True)
    assert hours(result, "dead_lettered", "expired", "arrived") == {"03": (1, 0, 0), "04": (0, 1, 0), "09": (0, 0, 1)}


def test_a_dead_letter_that_shows_no_time_and_no_number_ends_no_reading() -> None:
    entities = Entities()
    entities.put(EWR, 1, at_ms=at(1))
    copy(entities, 1, 1)

    class Spools:
        def waiting(self, route: str) -> Iterator[bytes]:
            return iter(())

        def set_aside(self, route: str) -> Iterator[bytes]:
            return iter((section.encode_message(b"plain"),))

    result = audit("flights", ROUTES[:1], AUDIT, entities.peek, by_hour=True, spools=Spools())
    assert hours(result, "arrived", "dead_lettered") == {"01": (1, 0), "unknown": (0, 1)}


def test_of_a_queue_a_gap_is_lost_in_the_hour_of_its_neighbours_or_in_none_that_is_known() -> None:
    entities = Entities()
    for number in range(1, 41):
        # 15 and 16 are lost within an hour; so is 30, at the end of one hour.
        if number not in (15, 16, 30, 40):
            copy(entities, number, number // 10)
    entities.put(SOURCE, 40, at_ms=at(4))
    result = audit("flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[QUEUE], by_hour=True)
    assert hours(result, "entered", "arrived", "waiting", "lost") == {
        "00": (9, 9, 0, 0),
        "01": (10, 8, 0, 2),
        "02": (10, 10, 0, 0),
        "03": (9, 9, 0, 0),
        "04": (1, 0, 1, 0),
        "unknown": (1, 0, 0, 1),
    }


def test_of_a_queue_what_waits_or_was_set_aside_shows_its_neighbours_hour() -> None:
    entities = Entities()
    copy(entities, 1, 5)
    entities.put(SOURCE, 3, at_ms=at(5))
    entities.put(DEAD, 5, reason="MaxDeliveryCountExceeded", at_ms=at(6))
    entities.put(SOURCE, 7, at_ms=at(6))
    result = audit("flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[QUEUE], by_hour=True)
    assert hours(result, "arrived", "waiting", "dead_lettered", "lost") == {
        "05": (1, 1, 0, 1),
        "06": (0, 1, 1, 1),
        "unknown": (0, 0, 0, 1),
    }


def test_a_ledger_shows_the_hour_of_what_consumers_have_taken() -> None:
    entities = Entities()
    copy(entities, 1, 1)
    copy(entities, 9, 9)
    one_passage = replace(QUEUE, is_consumed=True)
    result = audit(
        "flights",
        ROUTES[:1],
        {"jfk": AUDIT["jfk"]},
        entities.peek,
        passages=[one_passage],
        by_hour=True,
        delivered=lambda _: dict.fromkeys((2, 4), at(20)),
        enqueued=lambda _: {2: at(2), 4: at(2), 5: at(7)},
    )
    assert hours(result, "arrived", "delivered", "consumed") == {
        "01": (1, 0, 0),
        "02": (0, 2, 1),  # 3 is between them
        "09": (1, 0, 0),
        "unknown": (0, 0, 4),
    }


def test_at_a_second_route_the_time_is_that_at_the_origin() -> None:
    """What waits at a hub was enqueued there later."""
    hub = replace(
        ROUTES[1], source=Endpoint("hub", "flights/Subscriptions/onward"), targets=(Endpoint("jfk", "flights"),)
    )
    entities = Entities()
    entities.contents[str(hub.source)] = []
    reported = {**copied("ewr", 2, ""), HOP_PROPERTIES[-1]: "2026-01-01T02:01:00.000Z"}
    entities.put(str(hub.source), 2, own=reported, at_ms=at(8))
    copy(entities, 1, 1)
    one_passage = passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0], hub), is_witnessed=False)
    result = audit(
        "flights", [ROUTES[0], hub], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[one_passage], by_hour=True
    )
    assert hours(result, "arrived", "waiting") == {"01": (1, 0), "02": (0, 1)}


def test_a_message_in_a_table_has_the_time_of_its_source() -> None:
    table = Endpoint(TABLE, "/archive")
    entities = Entities()
    entities.put(str(table), 1, at_ms=at(1))
    entities.put(str(table), 3, at_ms=at(1))
    one_passage = passage.Passage(
        origin="ewr", member="jfk", routes=(ROUTES[0],), is_witnessed=False, keeps_numbers=True
    )
    result = audit("flights", ROUTES[:1], {"jfk": table}, entities.peek, passages=[one_passage], by_hour=True)
    assert hours(result, "arrived", "lost") == {"01": (2, 1)}


OUTCOMES = st.sampled_from(["arrived", "twice", "late", "waiting", "expired", "dead", "lost", "other", "foreign"])


@pytest.mark.parametrize("is_kept", [True, False])
@given(outcomes=st.lists(st.tuples(OUTCOMES, st.integers(0, 3)), max_size=25))
def test_i3_whatever_became_of_messages_their_hours_add_up(is_kept: bool, outcomes: list[tuple[str, int]]) -> None:
    entities = Entities()
    entities.contents[DEAD] = []
    for number, (outcome, hour) in enumerate(outcomes, 1):
        if is_kept:
            entities.put(EWR, number, at_ms=at(hour), body=b"one")
        if outcome in ("arrived", "twice", "other"):
            copy(entities, number, hour, body=b"two" if outcome == "other" else b"one")
        if outcome == "waiting":
            entities.put(SOURCE, number, at_ms=at(hour), body=b"one")
        if outcome in ("expired", "dead"):
            entities.put(
                DEAD, number, at_ms=at(hour), reason="TTLExpiredException" if outcome == "expired" else "Refused"
            )
        if outcome == "foreign":
            copy(entities, number + 1000, hour)
    for number, (outcome, hour) in reversed(list(enumerate(outcomes, 1))):
        if outcome in ("twice", "late"):
            copy(entities, number, hour, body=b"one")
    audit_endpoints = AUDIT if is_kept else {"jfk": AUDIT["jfk"]}
    result = audit(
        "flights",
        ROUTES if is_kept else ROUTES[:1],
        audit_endpoints,
        entities.peek,
        passages=() if is_kept else [QUEUE],
        by_hour=True,
        selects=lambda message, identity: ("", "", "", "filtered")[identity.number % 4],
    )
    for compared in result.comparisons:
        assert compared.hours is not None
        _add_up(compared.hours, compared.counts)
        if is_kept:
            lost = [outcome for number, outcome in enumerate(outcomes, 1) if number in compared.samples.get("lost", ())]
            found = [each.counts["lost"] for each in compared.hours if each.hour is not None]
            assert sum(found) == compared.counts["lost"] >= len(lost)
    _add_up(result.hours, {count.name: result.total(count.name) for count in COUNTS})


def _add_up(hours: tuple[HourCounts, ...], counts: Mapping[str, int]) -> None:
    assert {count.name: sum(each.counts[count.name] for each in hours) for count in COUNTS} == dict(counts)
