"""isthmus.replication.verification.audit.joined, in an audit."""

from __future__ import annotations

from harness.fixture.audit_entities import AUDIT, ROUTES, Entities
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation

SENT = "ewr/flights/Subscriptions/audit"
ARRIVED = "jfk/flights/Subscriptions/audit"


def audited(entities: Entities, joined_ms: int) -> Reconciliation:
    passages = [Passage(origin=route.source.alias, member=route.target.alias, routes=(route,)) for route in ROUTES]
    return audit("flights", ROUTES, AUDIT, entities.peek, passages=passages, joined=lambda passage: joined_ms)


def counts(result: Reconciliation) -> tuple[int, int, int]:
    return result.total("arrived"), result.total("before_route"), result.total("lost")


def test_what_was_sent_before_the_member_took_part_is_not_lost() -> None:
    entities = Entities()
    for number in range(1, 7):
        entities.put(SENT, number, at_ms=1000 * number)
    for number in (5, 6):
        entities.put(ARRIVED, number, origin="ewr", at_ms=9000)
    result = audited(entities, 4500)
    assert counts(result) == (2, 4, 0)
    assert result.verdict is Verdict.CLEAN
    assert counts(audited(entities, 0)) == (2, 0, 4), "not known"


def test_i1_what_was_sent_after_a_message_that_arrived_is_lost() -> None:
    """Its subscription was deleted, with the message, and created again."""
    entities = Entities()
    for number in range(1, 7):
        entities.put(SENT, number, at_ms=1000 * number)
    for number in (2, 6):
        entities.put(ARRIVED, number, origin="ewr", at_ms=9000)
    assert counts(audited(entities, 5500)) == (2, 1, 3)


def test_i1_what_was_sent_after_a_message_that_waits_is_lost() -> None:
    entities = Entities()
    for number in range(1, 7):
        entities.put(SENT, number, at_ms=1000 * number)
    entities.put("ewr/flights/Subscriptions/isthmus.flights.jfk", 2, at_ms=2000)
    assert counts(audited(entities, 5500)) == (0, 1, 4)
