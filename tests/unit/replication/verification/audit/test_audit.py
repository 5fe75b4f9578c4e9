"""The reading for reconciliation is complete and correct while messages move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.fixture.audit_entities import AUDIT, ROUTES, Entities, copied
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.message.name import HOP_PROPERTIES, RESENT, WHY_ROUTE
from isthmus.replication.verification.audit import passage
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.identity import Members
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Route


def test_every_outcome_is_reported() -> None:
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


def test_a_copy_before_a_route_is_not_taken_for_the_message_of_its_number() -> None:
    entities = Entities()
    entities.put("jfk/flights/Subscriptions/audit", 7)
    entities.put("jfk/flights/Subscriptions/isthmus.flights.ewr", 7, origin="ewr")
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert (result.total("waiting"), result.total("lost")) == (0, 1)


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
    monkeypatch.setattr(passage, "PAGE_MESSAGES", 7)
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
    other = Entities()
    for alias in ("ewr", "jfk"):
        other.put(f"{alias}/flights/Subscriptions/audit", 1, message_id="m1", at_ms=1000, body=alias.encode())
    result = audit("flights", ROUTES, AUDIT, other.peek, detection_ms=WINDOWS_MS)
    assert (result.total("dropped"), result.total("lost"), result.verdict) == (0, 2, Verdict.FAULTY)


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
    assert (result.total("dropped"), result.total("lost"), result.total("unequal")) == (0, 2, 1)


def test_of_two_equals_the_one_that_came_first_explains_the_other() -> None:
    entities = Entities()
    for number in (1, 2):
        entities.put("ewr/flights/Subscriptions/audit", number, message_id="m", at_ms=1000 * number)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr", message_id="m", at_ms=1500)
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("arrived"), result.total("dropped"), result.total("lost")) == (1, 1, 0)


def test_i3_what_ended_its_life_cannot_be_reported_and_is_left_out_where_that_was_during_the_reading() -> None:
    entities = Entities()
    clock = ManualClock()
    now_ms = clock.wall_ms()
    audited = "ewr/flights/Subscriptions/audit"
    entities.put(audited, 1, at_ms=now_ms - 60_000, ttl_ms=30_000)
    entities.put(audited, 2, at_ms=now_ms - 60_000, ttl_ms=61_000)
    entities.put(audited, 3, at_ms=now_ms - 60_000)
    entities.put("jfk/flights/Subscriptions/audit", 3, origin="ewr")
    result = audit("flights", ROUTES, AUDIT, entities.peek, clock=clock)
    assert (result.total("entered"), result.total("ended"), result.total("lost")) == (2, 1, 0)
    assert result.verdict is Verdict.UNCLEAR
    entities.put(audited, 4, at_ms=now_ms - 60_000, ttl_ms=300_000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, clock=clock)
    assert (result.total("lost"), result.comparisons[1].samples["lost"]) == (1, (4,))
    assert result.verdict is Verdict.FAULTY


def test_what_expired_before_its_route_is_a_fault() -> None:
    entities = Entities()
    clock = ManualClock()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    assert audit("flights", ROUTES, AUDIT, entities.peek, clock=clock).verdict is Verdict.CLEAN
    # Its original was removed from the audited subscription meanwhile, as it has expired there, too.
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue", 2, reason="TTLExpiredException")
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk", 3, at_ms=clock.wall_ms() - 60_000, ttl_ms=1000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, clock=clock)
    assert (result.total("expired"), result.verdict) == (2, Verdict.FAULTY)


def test_i4_what_is_not_replicated_is_not_missed_and_is_counted() -> None:
    entities = Entities()
    fates = {"": b"", "held_back": b"own", "filtered": b"filter", "incomparable": b"odd"}
    for number, body in enumerate(fates.values(), 1):
        entities.put("ewr/flights/Subscriptions/audit", number, body=body)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")

    def selects(message: bytes, _: object) -> str:
        return next((fate for fate, body in fates.items() if fate and body in message), "")

    result = audit("flights", ROUTES, AUDIT, entities.peek, selects=selects)
    reported = {
        kind: result.total(kind) for kind in ("entered", "held_back", "filtered", "incomparable", "lost", "unknown")
    }
    assert reported == {"entered": 1, "held_back": 1, "filtered": 1, "incomparable": 1, "lost": 0, "unknown": 0}
    assert result.verdict is Verdict.FAULTY  # for the one that the rule cannot compare


def test_i5_a_copy_with_other_content_is_no_arrival() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, body=b"gate 5", own={"carrier": "UA"}, message_id="m")
    entities.put("ewr/flights/Subscriptions/audit", 2, body=b"gate 6")
    jfk = "jfk/flights/Subscriptions/audit"
    entities.put(jfk, 1, origin="ewr", body=b"gate 5", own={"carrier": "AA"}, message_id="m")
    entities.put(jfk, 2, origin="ewr", body=b"gate 7")
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("arrived", "unequal", "lost")] == [0, 2, 2]
    assert result.verdict is Verdict.FAULTY
    entities.put(
        jfk, 1, origin="ewr", body=b"gate 5", own={"carrier": "UA", "seen": 1, "RuleName": "x"}, message_id="m"
    )
    entities.put(jfk, 2, origin="ewr", body=b"gate 6", message_id="ewr/flights/2", own={"seen": 1})
    result = audit("flights", ROUTES, AUDIT, entities.peek, mark="Seen")
    assert [result.total(kind) for kind in ("arrived", "unequal", "lost")] == [2, 2, 0]


def test_provenance_of_a_message_that_never_entered_is_not_believed() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    for number in (2, 99):  # between those that entered, and beyond all of them
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    entities.put("ewr/flights/Subscriptions/audit", 4)
    entities.put("jfk/flights/Subscriptions/audit", 4, origin="ewr")
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("entered", "arrived", "forged", "lost")] == [2, 2, 2, 0]
    assert result.verdict is Verdict.FAULTY


def test_a_message_from_outside_the_task_entered_where_it_came_to_a_member() -> None:
    """Another task brought it: a route that stops it because of where it comes from loses it for this task."""
    entities = Entities()
    members = Members({("ewr", "flights"): "ewr", ("jfk", "flights"): "jfk"})
    entities.put("ewr/flights/Subscriptions/audit", 1, origin="lga")
    result = audit("flights", ROUTES, AUDIT, entities.peek, members=members)
    assert [result.total(kind) for kind in ("entered", "lost", "forged")] == [1, 1, 0]
    there = copied("lga", 1, "")
    there |= {name: f"{there[name]};{value}" for name, value in copied("ewr", 1, "").items() if name in HOP_PROPERTIES}
    entities.put("jfk/flights/Subscriptions/audit", 1, own=there)
    result = audit("flights", ROUTES, AUDIT, entities.peek, members=members)
    assert [result.total(kind) for kind in ("entered", "arrived", "lost")] == [1, 1, 0]


def test_what_applications_consume_is_not_called_lost() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in range(1, 11):
        entities.put(ewr, number, at_ms=1000 * number)
        entities.put(jfk, number, origin="ewr", at_ms=1000 * number)
    assert audit("flights", ROUTES, AUDIT, entities.peek, shared=True).verdict is Verdict.CLEAN
    del entities.contents[jfk][:4]
    result = audit("flights", ROUTES, AUDIT, entities.peek, shared=True)
    assert [result.total(kind) for kind in ("entered", "arrived", "consumed", "lost")] == [10, 6, 4, 0]
    assert result.verdict is Verdict.UNCLEAR
    assert (
        "4 messages are no longer there in flights/Subscriptions/audit at jfk (applications consume it)"
        in result.doubts
    )
    del entities.contents[ewr][:7]
    result = audit("flights", ROUTES, AUDIT, entities.peek, shared=True)
    assert [result.total(kind) for kind in ("entered", "arrived", "unknown", "forged", "lost")] == [3, 3, 3, 0, 0]


def test_what_a_ledger_shows_of_an_entity_that_was_made_again_since_delivers_nothing() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    entities.put(jfk, 1, origin="ewr", at_ms=1000)
    for number in (1, 2):
        entities.put(ewr, number, at_ms=1_000_000)
    reported = {1: 1_000_500, 2: 900_000}
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek, shared=True, delivered=lambda passage: reported)
    assert [result.total(kind) for kind in ("arrived", "delivered", "consumed")] == [1, 0, 1]
    del entities.contents[jfk][:]
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek, shared=True, delivered=lambda passage: reported)
    assert [result.total(kind) for kind in ("delivered", "consumed")] == [1, 1]


def test_of_a_queue_that_was_made_again_a_ledger_confirms_what_was_moved_since() -> None:
    """What entered it is not retained: a message entered after those of lower numbers that are known."""
    entities = Entities()
    jfk = "jfk/flights/Subscriptions/audit"
    for number in (1, 3, 5):
        reported = {**copied("ewr", number, ""), HOP_PROPERTIES[-1]: f"2026-01-09T00:00:00.00{number}Z"}
        entities.put(jfk, number, own=reported)
    one_passage = passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0],), is_witnessed=False, is_consumed=True)
    made_again_ms = 1_767_916_800_000
    moved = {1: made_again_ms, 2: made_again_ms - 86_400_000, 4: made_again_ms + 10}
    result = audit(
        "flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[one_passage], delivered=lambda _: moved
    )
    assert [result.total(kind) for kind in ("entered", "arrived", "delivered", "consumed")] == [5, 3, 1, 1]


def test_i5_a_copy_of_a_message_that_had_the_number_before_is_no_arrival() -> None:
    """The origin was made again: its numbers begin again, with messages of the same content."""
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    entities.put(ewr, 1, at_ms=1_800_000_000_000)
    entities.put(jfk, 1, origin="ewr", at_ms=1000)  # its provenance says 2026-01-01
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("arrived", "forged", "lost")] == [0, 1, 1]


def test_of_a_subscription_of_its_own_only_what_may_have_been_there_is_in_doubt() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in range(1, 11):
        entities.put(ewr, number, at_ms=10_000 * number)
        if number != 9:
            entities.put(jfk, number, origin="ewr", at_ms=10_000 * number)
    del entities.contents[jfk][:4]
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("consumed", "lost")] == [4, 1]
    assert result.verdict is Verdict.FAULTY


def test_i1_no_more_copies_can_have_been_taken_out_than_are_absent() -> None:
    """A message of the target's own that expired between two others does not hide that copies never came."""
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in range(1, 6):
        entities.put(ewr, number)
    for number in range(1, 4):
        entities.put(jfk, number)
        entities.put(ewr, number, origin="jfk")
    del entities.contents[jfk][1]
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("consumed", "lost")] == [1, 4]
    assert result.verdict is Verdict.FAULTY


def test_i1_no_more_copies_of_all_origins_can_have_been_taken_out_than_are_absent() -> None:
    """With three members: copies of both others counted as consumed, as many of each as were absent, and no loss was a fault."""
    entities = Entities()
    ewr, jfk, lga = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk", "lga"))
    for number in range(1, 4):
        entities.put(ewr, number)
        entities.put(lga, number)
        entities.put(jfk, number)
    del entities.contents[jfk][1]
    ends = {alias: Endpoint(alias, "flights/Subscriptions/audit") for alias in ("ewr", "jfk", "lga")}
    into = [replace(ROUTES[0], source=replace(ROUTES[0].source, alias=origin)) for origin in ("ewr", "lga")]
    entities.contents |= {str(each.source): [] for each in into}
    passages = [passage.Passage(origin=each.source.alias, member="jfk", routes=(each,)) for each in into]
    result = audit("flights", into, ends, entities.peek, passages=passages)
    assert [result.total(kind) for kind in ("consumed", "lost")] == [1, 5]
    assert result.verdict is Verdict.FAULTY


def test_what_the_audit_subscription_has_outlived_is_no_fault() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in range(1, 11):
        entities.put(ewr, number, at_ms=10_000 * number)
        entities.put(jfk, number, origin="ewr", at_ms=10_000 * number)
    del entities.contents[ewr][:5]
    del entities.contents[jfk][:4]
    clock = ManualClock()
    ttl_ms = clock.wall_ms()
    result = audit("flights", ROUTES, AUDIT, entities.peek, ttl_ms=ttl_ms, clock=clock)
    assert (result.total("entered"), result.total("forged"), result.verdict) == (5, 0, Verdict.CLEAN)
    assert [(each.absent_before, each.messages) for each in result.readings] == [(5, 5), (4, 6)]
    # What came in half of that time is still there: what is absent was removed before its time.
    result = audit("flights", ROUTES, AUDIT, entities.peek, ttl_ms=3 * ttl_ms, clock=clock)
    assert result.verdict is Verdict.UNCLEAR
    entities.put(ewr, 11, at_ms=ttl_ms - 1000, ttl_ms=60_000)
    entities.put(jfk, 11, origin="ewr", at_ms=ttl_ms - 1000, ttl_ms=60_000)
    assert audit("flights", ROUTES, AUDIT, entities.peek, ttl_ms=ttl_ms, clock=clock).verdict is Verdict.UNCLEAR
    assert audit("flights", ROUTES, AUDIT, entities.peek).verdict is Verdict.UNCLEAR


def test_a_subscription_that_keeps_its_messages_for_ever_explains_no_absence() -> None:
    """The file says a day; one that existed before keeps what it had, and its messages bear no time to live."""
    day_ms = 86_400_000
    clock = ManualClock()
    for ttl_ms, verdict in ((None, Verdict.UNCLEAR), (day_ms, Verdict.CLEAN)):
        entities = Entities()
        ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
        for number in range(1, 11):
            at_ms = clock.wall_ms() - day_ms + 1_000_000 + number
            entities.put(ewr, number, at_ms=at_ms, ttl_ms=ttl_ms)
            entities.put(jfk, number, origin="ewr", at_ms=at_ms, ttl_ms=ttl_ms)
        del entities.contents[ewr][:5]
        del entities.contents[jfk][:5]
        assert audit("flights", ROUTES, AUDIT, entities.peek, ttl_ms=day_ms, clock=clock).verdict is verdict


@pytest.mark.parametrize(("ends_in_ms", "forged"), [(-60_000, 0), (1000, 0), (60_000, 1)])
def test_a_copy_whose_original_has_just_expired_behind_all_that_remains_is_not_forged(
    ends_in_ms: int, forged: int
) -> None:
    entities, clock = Entities(), ManualClock()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in (1, 2):
        entities.put(ewr, number, at_ms=clock.wall_ms() - 200_000)
        entities.put(jfk, number, origin="ewr", at_ms=clock.wall_ms() - 200_000)
    entities.put(jfk, 3, origin="ewr", at_ms=clock.wall_ms() - 100_000, ttl_ms=100_000 + ends_in_ms)
    result = audit("flights", ROUTES, AUDIT, entities.peek, clock=clock)
    assert [result.total(kind) for kind in ("entered", "arrived", "forged", "lost")] == [2, 2, forged, 0]


def test_a_dead_letter_that_was_sent_again_is_accounted_for() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in (1, 2, 3):
        entities.put(ewr, number, message_id=f"m{number}", body=b"gate")
    entities.put(jfk, 3, origin="ewr", message_id="m3", body=b"gate")
    # Number 1 was dead-lettered, sent again as 4, dead-lettered again, and sent again as 5.
    entities.put(ewr, 4, message_id="m1", body=b"gate", own={RESENT: "1"})
    entities.put(ewr, 5, message_id="m1", body=b"gate", own={RESENT: "4"})
    entities.put(jfk, 5, origin="ewr", message_id="m1", body=b"gate", own={RESENT: "4"})
    # Number 2 is claimed by a message that says something else.
    entities.put(ewr, 6, message_id="m2", body=b"other", own={RESENT: "2"})
    entities.put(jfk, 6, origin="ewr", message_id="m2", body=b"other", own={RESENT: "2"})
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("entered", "arrived", "resent", "lost")] == [6, 3, 2, 1]


@pytest.mark.parametrize(
    ("place", "counts"),
    [("ewr/flights/1", [3, 3, 0, 0, 0]), ("ewr/flights/2", [3, 2, 1, 1, 0]), ("jfk/flights/1", [3, 2, 1, 1, 0])],
)
def test_what_redrive_has_sent_comes_late_and_may_have_been_mended(place: str, counts: list[int]) -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in (1, 2, 3):
        entities.put(ewr, number, message_id=f"m{number}", body=b"gate")
    for number in (2, 3):
        entities.put(jfk, number, origin="ewr", message_id=f"m{number}", body=b"gate")
    entities.put(jfk, 1, origin="ewr", message_id="m1", body=b"mended", own={RESENT: place})
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    kinds = ("entered", "arrived", "unequal", "lost", "out_of_order")
    assert [result.total(kind) for kind in kinds] == counts


def test_a_second_copy_that_redrive_has_sent_is_a_double() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    for number in (1, 2):
        entities.put(ewr, number, message_id=f"m{number}", body=b"gate")
        entities.put(jfk, number, origin="ewr", message_id=f"m{number}", body=b"gate")
    entities.put(jfk, 1, origin="ewr", message_id="m1", body=b"gate", own={RESENT: "ewr/flights/1"})
    result = audit("flights", ROUTES, AUDIT, entities.peek)
    assert [result.total(kind) for kind in ("arrived", "duplicated", "out_of_order")] == [2, 1, 0]


def test_a_copy_with_a_mark_that_the_operator_named_before_is_an_arrival_where_that_is_reported() -> None:
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    entities.put(ewr, 1)
    entities.put(jfk, 1, origin="ewr", own={"Replicated": 1})
    result = audit("flights", ROUTES, AUDIT, entities.peek, mark="moved")
    assert [result.total(kind) for kind in ("arrived", "unequal", "lost")] == [0, 1, 1]
    result = audit("flights", ROUTES, AUDIT, entities.peek, mark="moved", former_marks=("replicated",))
    assert [result.total(kind) for kind in ("arrived", "unequal", "lost")] == [1, 0, 0]


def test_nothing_read_proves_nothing() -> None:
    result = audit("flights", ROUTES, AUDIT, Entities().peek)
    assert result.verdict is Verdict.UNCLEAR
    assert "nothing to compare" in result.doubts[0]


def test_where_no_order_is_promised_its_lack_is_no_fault() -> None:
    entities = Entities()
    for number in (1, 2):
        entities.put("ewr/flights/Subscriptions/audit", number)
    for number in (2, 1):
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    assert not audit("flights", ROUTES, AUDIT, entities.peek).clean
    result = audit("flights", ROUTES, AUDIT, entities.peek, ordered=False)
    assert (result.total("out_of_order"), result.clean) == (1, True)


def test_a_message_that_cannot_be_read_completely_stops_no_reading() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, message_id="text", at_ms=1000)
    entities.put("jfk/flights/Subscriptions/audit", 9, message_id="text", at_ms=1000)
    entities.put("jfk/flights/Subscriptions/isthmus.flights.ewr", 9)
    for messages in entities.contents.values():
        messages[:] = [message.replace(b"text", b"\xff\xff\xff\xff") for message in messages]
    result = audit("flights", ROUTES, AUDIT, entities.peek, detection_ms=WINDOWS_MS)
    assert (result.total("lost"), result.total("dropped")) == (0, 1)


def test_of_a_partitioned_topic_every_fragment_is_read_on() -> None:
    """Sequence numbers have the fragment in their top 16 bits: what comes to a lower one later has a lower number."""
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    entities.next = {ewr: (1 << 48) + 1, jfk: (1 << 48) + 1}
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 70)
    entities.next = {ewr: (2 << 48) + 1, jfk: (2 << 48) + 1}
    entities.put("ewr/flights/Subscriptions/audit", 2)
    entities.put("jfk/flights/Subscriptions/audit", 2, origin="ewr")
    entities.put("ewr/flights/Subscriptions/audit", 70, origin="jfk")
    opener = entities.peek

    def moving(endpoint: Endpoint):
        if endpoint == ROUTES[0].source:
            entities.next[jfk] = (1 << 48) + 9
            entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
        return opener(endpoint)

    result = audit("flights", ROUTES, AUDIT, moving, ordered=False)
    assert (result.total("arrived"), result.total("lost"), result.total("duplicated")) == (3, 0, 0)


@pytest.mark.parametrize(("ttl_ms", "verdict"), [(2000, Verdict.CLEAN), (None, Verdict.UNCLEAR)])
def test_copies_of_a_partition_of_which_nothing_is_left_are_not_forged(ttl_ms: int | None, verdict: Verdict) -> None:
    """The originals have lived out the time to live of the audit subscription, if it has one."""
    entities = Entities()
    ewr, jfk = (f"{alias}/flights/Subscriptions/audit" for alias in ("ewr", "jfk"))
    entities.next = {ewr: (2 << 48) + 1, jfk: 1}
    entities.put(ewr, (2 << 48) + 1, ttl_ms=ttl_ms, at_ms=5000)
    for number in ((1 << 48) + 1, (2 << 48) + 1):
        entities.put(jfk, number, origin="ewr", ttl_ms=ttl_ms, at_ms=5000)
    result = audit("flights", ROUTES, AUDIT, entities.peek, ordered=False, ttl_ms=ttl_ms or 0, clock=ManualClock(6500))
    assert result.total("forged") == 0
    assert result.verdict is verdict, result.to_dict()


def test_i5_of_a_queue_that_was_made_again_former_numbers_hide_no_loss_and_are_no_doubles() -> None:
    """What enters a queue is not retained: only its numbers are known, and they begin again."""
    entities = Entities()
    for number, day in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 9), (2, 9), (4, 9), (5, 9)):
        reported = {**copied("ewr", number, ""), HOP_PROPERTIES[-1]: f"2026-01-0{day}T00:00:00.00{number}Z"}
        entities.put("jfk/flights/Subscriptions/audit", number, own=reported)
    one_passage = passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0],), is_witnessed=False)
    result = audit("flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[one_passage])
    counts = [result.total(kind) for kind in ("entered", "arrived", "lost", "duplicated", "out_of_order")]
    assert counts == [5, 4, 1, 0, 0]


def test_i5_numbers_that_come_out_of_order_are_of_one_queue() -> None:
    entities = Entities()
    for number, minute in ((1, 1), (3, 3), (2, 2), (3, 3)):
        reported = {**copied("ewr", number, ""), HOP_PROPERTIES[-1]: f"2026-01-01T00:0{minute}:00.000Z"}
        entities.put("jfk/flights/Subscriptions/audit", number, own=reported)
    one_passage = passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0],), is_witnessed=False)
    result = audit("flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[one_passage])
    counts = [result.total(kind) for kind in ("entered", "arrived", "duplicated", "out_of_order")]
    assert counts == [3, 3, 1, 1]


SPLIT = [("jfk", "a = 1"), ("lga", "b = 2")]


def divided(*, changes: bool = False, consumed: bool = False, waits: bool = False) -> Reconciliation:
    """A queue whose messages go to two queues: of two that both filters select one is at the first alone."""
    entities = Entities()
    passages = []
    for member, condition in SPLIT:
        route = Route(
            name=f"t.{member}",
            task="t",
            pattern="split",
            source=Endpoint("ewr", f"isthmus.t/Subscriptions/isthmus.t.{member}"),
            targets=(Endpoint(member, "q"),),
        )
        entities.contents[str(route.source)] = []
        one_passage = passage.Passage(
            origin="ewr", member=member, routes=(route,), is_witnessed=False, is_filtered=True, filter=condition
        )
        passages.append(replace(one_passage, changes=changes, is_consumed=consumed))
    for number, own in ((1, {"a": 1}), (2, {"a": 1, "b": 2}), (4, {"a": 1, "b": 2}), (5, {"a": 1})):
        if waits and number == 2:
            entities.put("ewr/isthmus.t/Subscriptions/isthmus.t.jfk", number, own=dict(own))
        else:
            entities.put("jfk/q", number, origin="ewr", own=dict(own))
    for number, own in ((3, {"b": 2}), (4, {"a": 1, "b": 2})):
        entities.put("lga/q", number, origin="ewr", own=dict(own))
    places = {member: Endpoint(member, "q") for member, _ in SPLIT}
    return audit("t", [one_passage.routes[0] for one_passage in passages], places, entities.peek, passages=passages)


@pytest.mark.parametrize("waits", [False, True])
def test_of_a_queue_that_is_divided_a_message_of_two_targets_is_missed_at_each(waits: bool) -> None:
    result = divided(waits=waits)
    assert {(each.member, each.lost) for each in result.comparisons if each.origin != each.member} == {
        ("jfk", 0),
        ("lga", 1),
    }
    assert result.verdict is Verdict.FAULTY
    result = divided(waits=waits, consumed=True)
    assert (result.total("lost"), result.total("consumed"), result.verdict) == (0, 1, Verdict.UNCLEAR)


def test_what_is_changed_in_transit_does_not_show_whether_another_target_is_to_have_it() -> None:
    result = divided(changes=True)
    assert (result.total("lost"), result.verdict) == (0, Verdict.UNCLEAR)
    assert any("are not checked for at lga" in each for each in result.doubts)


def test_filters_that_exclude_each_other_leave_nothing_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SPLIT", [("jfk", "a = 1"), ("lga", "a = 2")])
    assert divided(changes=True).verdict is Verdict.CLEAN


def test_what_a_namespace_forwards_by_filters_is_missed_at_each_that_selects_it() -> None:
    entities = Entities()
    passages = [
        passage.Passage(origin="in", member=member, routes=(), is_witnessed=False, is_filtered=True, filter=condition)
        for member, condition in SPLIT
    ]
    for number, own in ((1, {"a": 1}), (2, {"a": 1, "b": 2}), (3, {"a": 1})):
        entities.put("ewr/jfk", number, own=dict(own))
    entities.contents["ewr/lga"] = []
    places = {member: Endpoint("ewr", member) for member, _ in SPLIT}
    result = audit("t", [], places, entities.peek, passages=passages)
    assert {(each.member, each.lost) for each in result.comparisons if each.origin != each.member} == {
        ("jfk", 0),
        ("lga", 1),
    }


DIVERTED = passage.Passage(
    origin="ewr",
    member="jfk",
    routes=(ROUTES[0],),
    drops=True,
    diverts=(Endpoint("jfk", "bad"), Endpoint("jfk", "worse")),
)


def diverted(entities: Entities, **more: object) -> Reconciliation:
    return audit("flights", ROUTES[:1], AUDIT, entities.peek, passages=[DIVERTED], **more)  # type: ignore[arg-type]


def test_what_steps_have_diverted_is_counted_apart_and_no_fault() -> None:
    entities = Entities()
    for number in range(1, 5):
        entities.put("ewr/flights/Subscriptions/audit", number)
    for number in (1, 2):
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr")
    entities.put("jfk/bad", 3, origin="ewr")
    entities.put("jfk/bad", 9, origin="lga")
    entities.put("jfk/worse", 4, origin="ewr")
    result = diverted(entities)
    assert [result.total(kind) for kind in ("arrived", "diverted", "lost", "consumed")] == [2, 2, 0, 0]
    assert result.verdict is Verdict.CLEAN


def test_what_was_dead_lettered_where_it_was_diverted_to_is_there_still() -> None:
    """A client that mends a message and fails on it uses up its deliveries."""
    entities = Entities()
    for number in range(1, 4):
        entities.put("ewr/flights/Subscriptions/audit", number)
    entities.put("jfk/bad", 1, origin="ewr")
    entities.put("jfk/bad/$DeadLetterQueue", 2, origin="ewr", reason="MaxDeliveryCountExceeded")
    one_passage = replace(DIVERTED, diverts=(Endpoint("jfk", "bad"), Endpoint("jfk", "bad/$DeadLetterQueue")))
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek, passages=[one_passage])
    assert [result.total(kind) for kind in ("diverted", "lost", "consumed")] == [2, 0, 1]
    del entities.contents["jfk/bad"], entities.contents["jfk/bad/$DeadLetterQueue"]
    result = audit("flights", ROUTES[:1], AUDIT, entities.peek, passages=[one_passage])
    assert [each for each in result.doubts if "divert" in each and "consumed" not in each] == [
        "the messages that steps divert to jfk/bad are not known: there is no such entity"
    ]


def test_what_was_mended_where_it_was_diverted_to_is_there_still() -> None:
    entities = Entities()
    for number in (1, 2):
        entities.put("ewr/flights/Subscriptions/audit", number)
    mended = copied("ewr", 1, "former", b"wrong") | {WHY_ROUTE: "flights.ewr.jfk"}
    entities.put("jfk/bad", 1, message_id="new", body=b"good", own=mended)
    # No step has diverted it: it carries a copy's properties, and is none.
    entities.put("jfk/worse", 2, message_id="new", body=b"good", own=copied("ewr", 2, "former", b"wrong"))
    result = diverted(entities, diverted=lambda _: {}, delivered=lambda _: {})
    assert [result.total(kind) for kind in ("diverted", "lost", "consumed")] == [1, 0, 1]


def test_what_is_neither_at_the_target_nor_where_it_was_diverted_to_cannot_be_reported() -> None:
    entities = Entities()
    for number in range(1, 4):
        entities.put("ewr/flights/Subscriptions/audit", number)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    entities.put("jfk/bad", 2, origin="ewr")
    entities.contents["jfk/worse"] = []
    result = diverted(entities)
    assert [result.total(kind) for kind in ("diverted", "lost", "consumed")] == [1, 0, 1]
    assert result.verdict is Verdict.UNCLEAR
    reported = diverted(entities, diverted=lambda _: {3: 1}, delivered=lambda _: {})
    assert [reported.total(kind) for kind in ("diverted", "lost", "consumed")] == [2, 0, 0]
    assert reported.verdict is Verdict.CLEAN


def test_an_entity_that_was_deleted_is_reported() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.put("jfk/flights/Subscriptions/audit", 1, origin="ewr")
    entities.contents["jfk/bad"] = []
    result = diverted(entities)
    assert result.doubts == ("the messages that steps divert to jfk/worse are not known: there is no such entity",)


def test_a_divert_target_that_is_unavailable_is_named() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)

    def away(endpoint: Endpoint):
        if endpoint.entity == "bad":
            raise ConnectionLostError("no answer")
        return entities.peek(endpoint)

    with pytest.raises(IsthmusError, match="the messages that steps divert to jfk/bad cannot be read: no answer"):
        audit("flights", ROUTES[:1], AUDIT, away, passages=[DIVERTED])


def test_what_was_diverted_of_an_entity_that_was_made_again_since_counts_not() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1, at_ms=1_800_000_000_000)
    entities.put("jfk/bad", 1, origin="ewr")  # its provenance says 2026-01-01
    entities.contents["jfk/worse"] = []
    result = diverted(entities)
    assert [result.total(kind) for kind in ("diverted", "consumed")] == [0, 1]


def test_what_entered_and_was_diverted_during_the_reading_is_ignored() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    for number in (1, 2):
        entities.put("jfk/bad", number, origin="ewr")
    entities.contents["jfk/worse"] = []
    result = diverted(entities)
    assert (result.total("diverted"), result.total("entered"), result.verdict) == (1, 1, Verdict.CLEAN)


def test_of_an_origin_that_is_not_retained_what_was_diverted_has_entered() -> None:
    entities = Entities()
    entities.put("jfk/flights/Subscriptions/audit", 2, origin="ewr")
    for number in (1, 4):
        entities.put("jfk/bad", number, origin="ewr")
    one_passage = replace(DIVERTED, is_witnessed=False, diverts=DIVERTED.diverts)
    result = audit("flights", ROUTES[:1], {"jfk": AUDIT["jfk"]}, entities.peek, passages=[one_passage], by_hour=True)
    assert [result.total(kind) for kind in ("entered", "arrived", "diverted", "consumed")] == [4, 1, 2, 1]
    assert [(each.name, each.counts["entered"]) for each in result.hours] == [("2026-01-01T00:00:00Z", 4)]
    assert result.unread == ("the messages that steps divert to jfk/worse are not known: there is no such entity",)


def test_a_message_that_is_diverted_during_the_reading_is_not_missing() -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    entities.contents |= {"jfk/bad": [], "jfk/worse": []}
    opener = entities.peek

    def moving(endpoint: Endpoint):
        if str(endpoint).endswith("$DeadLetterQueue"):
            entities.contents["jfk/bad"] = []
            entities.put("jfk/bad", 1, origin="ewr")
        return opener(endpoint)

    result = audit("flights", ROUTES[:1], AUDIT, moving, passages=[DIVERTED])
    assert (result.total("diverted"), result.verdict) == (1, Verdict.CLEAN)


BOTH = [
    replace(
        DIVERTED,
        member=member,
        routes=(
            replace(
                ROUTES[0],
                name=f"flights.ewr.{member}",
                source=Endpoint("ewr", f"flights/Subscriptions/isthmus.flights.{member}"),
                targets=(Endpoint(member, "flights"),),
            ),
        ),
        diverts=(Endpoint("jfk", "bad"),),
        divert_detection_ms=600_000,
    )
    for member in ("jfk", "lga")
]
SOURCE = {
    one_passage.member: {"repl-dead-letter-source": f"ewr/flights/Subscriptions/isthmus.flights.{one_passage.member}"}
    for one_passage in BOTH
}


def diverted_by_both(entities: Entities, passages: list[passage.Passage], **more: object) -> Reconciliation:
    places = {**AUDIT, "lga": Endpoint("lga", "flights/Subscriptions/audit")}
    entities.contents |= {str(place): entities.contents.get(str(place), []) for place in places.values()}
    entities.contents |= {str(one_passage.routes[0].source): [] for one_passage in passages}
    entities.contents.setdefault("jfk/bad", [])
    return audit(
        "flights", [one_passage.routes[0] for one_passage in passages], places, entities.peek, passages=passages, **more
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left_by", "window_ms", "expected"),
    [
        (["jfk"], 600_000, {"jfk": (1, 0), "lga": (0, 1)}),
        (["jfk", "lga"], 600_000, {"jfk": (1, 0), "lga": (1, 0)}),
        (["jfk"], 0, {"jfk": (1, 0), "lga": (1, 0)}),
        ([""], 600_000, {"jfk": (1, 0), "lga": (1, 0)}),
    ],
)
def test_what_two_routes_divert_to_one_entity_that_keeps_it_once_counts_as_diverted_once(
    left_by: list[str], window_ms: int, expected: dict[str, tuple[int, int]]
) -> None:
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    for member in left_by:
        entities.put("jfk/bad", 1, origin="ewr", own=dict(SOURCE.get(member, {})))
    result = diverted_by_both(entities, [replace(one_passage, divert_detection_ms=window_ms) for one_passage in BOTH])
    reported = {each.member: (each.diverted, each.dropped) for each in result.comparisons if each.origin != each.member}
    assert (reported, result.verdict) == (expected, Verdict.CLEAN)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((1000, 2000), {"jfk": (1, 0), "lga": (0, 1)}),
        ((2000, 1000), {"jfk": (0, 1), "lga": (1, 0)}),
        ((1000, 601_001), {"jfk": (1, 0), "lga": (1, 0)}),
        ((1000, 1000), {"jfk": (1, 0), "lga": (1, 0)}),
    ],
)
def test_what_ledgers_show_of_two_routes_that_divert_one_message_counts_as_diverted_once(
    times: tuple[int, int], expected: dict[str, tuple[int, int]]
) -> None:
    """Equal times are those of one route that both directions have."""
    entities = Entities()
    entities.put("ewr/flights/Subscriptions/audit", 1)
    ledger = dict(zip(("jfk", "lga"), times, strict=True))
    result = diverted_by_both(
        entities, BOTH, delivered=lambda _: {}, diverted=lambda each: {1: ledger[each.member]}, by_hour=True
    )
    reported = {each.member: (each.diverted, each.dropped) for each in result.comparisons if each.origin != each.member}
    assert (reported, result.verdict) == (expected, Verdict.CLEAN)


def test_copies_that_expire_about_when_they_are_read_are_no_doubt() -> None:
    """Where messages always come, some do: `verify` of such a task never ended with 0, and where they are rare it reported the last one as lost."""
    clock, expires_ms = ManualClock(), 60_000
    now_ms = clock.wall_ms()
    entities = Entities()
    for number, age_ms in enumerate((120_000, 64_000, 61_000, 59_000, 1000), 1):
        entities.put("ewr/flights/Subscriptions/audit", number, at_ms=now_ms - age_ms, ttl_ms=None)
        entities.put("jfk/flights/Subscriptions/audit", number, origin="ewr", at_ms=now_ms - age_ms, ttl_ms=expires_ms)
    del entities.contents["jfk/flights/Subscriptions/audit"][:3]
    passages = [passage.Passage(origin="ewr", member="jfk", routes=(ROUTES[0],), expires_ms=expires_ms)]
    result = audit(
        "flights", ROUTES[:1], AUDIT, entities.peek, passages=passages, ttl_ms={"jfk": expires_ms}, clock=clock
    )
    there = next(each for each in result.comparisons if each.member == "jfk")
    assert (there.arrived, there.copy_expired, there.consumed, there.lost) == (2, 3, 0, 0)
    assert result.verdict is Verdict.CLEAN, result.doubts
