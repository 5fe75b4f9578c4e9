"""isthmus.topology.rights: the rights at each namespace."""

from __future__ import annotations

from isthmus.topology import read
from isthmus.topology.rights import rights

FILE = """isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
  hub: {kind: kafka, bootstrap: "k:9092"}
  idle: {connection: env:IDLE}
tasks:
  moves: {pattern: move, queue: orders, source: ewr, target: jfk}
  feeds: {pattern: queue-to-stream, topic: flights, source: ewr, target: hub, stream: flights}
"""


def test_each_namespace_needs_what_its_routes_read_write_and_claim() -> None:
    """I1, too: idle needs nothing."""
    found = {each.alias: each for each in rights(read(FILE))}
    assert list(found) == ["ewr", "jfk", "hub"]
    assert found["ewr"].listen == (
        "orders",
        "flights/Subscriptions/isthmus.feeds.hub",
        "isthmus.claims/Subscriptions/moves",
        "isthmus.claims/Subscriptions/feeds",
    )
    assert found["ewr"].send == ("isthmus.claims",)
    assert found["jfk"].listen == ()
    assert found["jfk"].send == ("orders",)
    assert found["hub"].send == ("flights",)
    assert found["hub"].manage == ("flights",)
    assert "Data Receiver" in found["ewr"].granted_by["listen"]
    assert "ACL" in found["hub"].granted_by["send"]


def test_mailboxes_and_canaries_need_rights_too() -> None:
    text = FILE.partition("tasks:")[0] + (
        "tasks:\n  t: {pattern: copy, topic: flights, source: ewr, target: jfk, audit: 1d, mailbox: true, canary: 30s}\n"
    )
    found = {each.alias: each for each in rights(read(text))}
    assert found["ewr"].listen == ("isthmus.t.jfk", "isthmus.claims/Subscriptions/t")
    assert found["ewr"].send == ("flights", "isthmus.claims")
    assert found["ewr"].manage == ("flights", "isthmus.t.jfk", "isthmus.claims")
    assert found["jfk"].listen == ("flights/Subscriptions/isthmus.t.canary",)
    assert found["jfk"].send == ("flights",)
