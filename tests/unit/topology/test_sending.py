"""The settings of a task for sending copies: compression and the hop budget."""

from __future__ import annotations

import pytest

from isthmus.topology import lint, read
from isthmus.topology.route import routes

HEAD = (
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  lga: {connection: env:C}\n"
    "  azure: {host: contoso.servicebus.windows.net}\n  kafka: {kind: kafka, bootstrap: 'k:9092'}\ntasks:\n"
)
FAN_OUT = "  a: {{pattern: fan-out, topic: a, hub: ewr, members: {{jfk: [lga]}}{}}}\n"


def test_routes_have_what_the_task_says() -> None:
    reported = [(each.options.compression, each.options.hop_budget) for each in routes(read(HEAD + FAN_OUT.format("")))]
    assert reported == [("none", 8)] * 2
    text = HEAD + FAN_OUT.format(", compression: deflate, hop_budget: 2")
    assert [(each.options.compression, each.options.hop_budget) for each in routes(read(text))] == [("deflate", 2)] * 2


@pytest.mark.parametrize(
    ("task", "reported"),
    [
        (FAN_OUT.format(", hop_budget: 1"), "member lga is 2 copies away from the hub, 1 at most"),
        (FAN_OUT.format(", hop_budget: 0"), "hop_budget"),
        (FAN_OUT.format(", compression: zstd"), "compression"),
        (
            "  a: {pattern: chain, members: [ewr], forward: {a: b}, hop_budget: 2}\n",
            "no setting 'hop_budget'",
        ),
        ("  a: {pattern: archive, source: ewr, queue: a, table: t, hop_budget: 2}\n", "makes no copies"),
        ("  a: {pattern: archive, source: ewr, queue: a, table: t, compression: deflate}\n", "no namespace of isthmus"),
        ("  a: {pattern: move, source: ewr, queue: a, target: azure, compression: deflate}\n", "remove compression"),
        (
            "  a: {pattern: move, source: ewr, queue: a, target: kafka, target_topic: a, compression: deflate}\n",
            "sends to no namespace of isthmus",
        ),
    ],
)
def test_what_cannot_be_is_reported(task: str, reported: str) -> None:
    faults = lint(HEAD + task)
    assert any(reported in str(each) for each in faults), faults
