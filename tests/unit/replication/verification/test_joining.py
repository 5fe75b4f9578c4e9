"""isthmus.replication.verification.joining: from when a member takes part."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.connectors.administration import AdministrationError
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.joining import joined_of
from isthmus.topology import read
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes

FEDERATION = read(
    """isthmus: 1
namespaces:
  ewr: {host: ewr.example.com}
  jfk: {host: jfk.example.com}
  lga: {host: lga.example.com}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga], audit: 1d}
  gates: {pattern: copy, topic: gates, source: ewr, target: jfk}
"""
)
OLD_MS, NEW_MS = 1_000, 5_000


def joined(task: str, origin: str, member: str, times: dict[str, int], *, is_refused: bool = False) -> int:
    """With the times of creation of some subscriptions; others are old."""
    chosen = routes(FEDERATION, task)
    passed = next(route for route in chosen if (route.source.alias, route.target.alias) == (origin, member))
    audits = [Endpoint(alias, "flights/Subscriptions/audit") for alias in ("ewr", "jfk", "lga")]

    def created(namespace: Any, path: str) -> int:
        if is_refused and namespace.alias == "ewr":
            raise AdministrationError("ewr", "refused the key")
        return times.get(f"{namespace.alias}/{path}", OLD_MS)

    found = joined_of(FEDERATION, chosen, audits if task == "flights" else [], created)
    return found(Passage(origin=origin, member=member, routes=(passed,)))


ADDED = {
    f"{alias}/flights/Subscriptions/{name}": NEW_MS
    for alias, name in (
        ("ewr", "isthmus.flights.lga"),
        ("jfk", "isthmus.flights.lga"),
        ("lga", "isthmus.flights.ewr"),
        ("lga", "isthmus.flights.jfk"),
        ("lga", "audit"),
    )
}


@pytest.mark.parametrize(
    ("origin", "member", "began_ms"),
    [("ewr", "lga", NEW_MS), ("lga", "ewr", NEW_MS), ("ewr", "jfk", OLD_MS)],
)
def test_a_member_takes_part_from_when_its_subscriptions_were_made(origin: str, member: str, began_ms: int) -> None:
    assert joined("flights", origin, member, ADDED) == began_ms


def test_i1_a_subscription_that_was_made_again_does_not_make_its_member_younger() -> None:
    """What it lost counts as lost."""
    assert joined("flights", "ewr", "lga", {"ewr/flights/Subscriptions/isthmus.flights.lga": NEW_MS}) == OLD_MS


def test_i1_of_one_subscription_nothing_shows_whether_it_was_made_again() -> None:
    assert joined("gates", "ewr", "jfk", {"ewr/gates/Subscriptions/isthmus.gates.jfk": NEW_MS}) == 0


def test_i2_what_cannot_be_asked_is_not_known() -> None:
    assert joined("flights", "ewr", "lga", ADDED, is_refused=True) == 0
