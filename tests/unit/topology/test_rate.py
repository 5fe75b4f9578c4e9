"""Rates in the notation of the file."""

from __future__ import annotations

import math

import pytest

from isthmus.errors import ConfigError
from isthmus.topology import read
from isthmus.topology.rate import Rate
from isthmus.topology.route import routes

FILE = """isthmus: 1
namespaces: {{ewr: {{connection: env:A}}, jfk: {{connection: env:B}}}}
tasks:
  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [all], rate: {rate}}}
"""
HOUR = 3600


def rate_of(text: str) -> str:
    federation = read(FILE.format(rate=text))
    (found,) = {route.options.rate for route in routes(federation)}
    return found


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("500/s", "500/s"),
        ("6000 / m", "6000/m"),
        ('"0.5/s"', "0.5/s"),
        ('[{from: "08:00", to: "18:00", limit: 100/s}, {limit: 500/s}]', "100/s 08:00-18:00, 500/s"),
        ("[{from: 22:00, to: 6:00, limit: 0/s}]", "0/s 22:00-06:00"),
        ('[{from: "18:00", to: "24:00", limit: 1/s}]', "1/s 18:00-00:00"),
    ],
)
def test_a_rate_reaches_each_route(written: str, text: str) -> None:
    assert rate_of(written) == text
    assert Rate.parse(text).to_text() == text


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("fast", "rate is no number of messages per second, minute or hour; write 500/s"),
        ("500", "rate is no number of messages"),
        ("-5/s", "rate is no number of messages"),
        ("{limit: 5/s}", "rate is neither a limit nor a list of limits"),
        ("[]", "rate is neither a limit nor a list of limits"),
        ('[{from: "08:00", limit: 5/s}]', 'rate has from without to; write to: "18:00"'),
        ('[{from: "8", to: "18:00", limit: 5/s}]', "from is no time of day"),
        ('[{from: "08:00", to: "08:00", limit: 5/s}]', "rate begins and ends at the same time"),
        ('[{from: "08:00", to: "25:00", limit: 5/s}]', "to is no time of day"),
        ("[{limit: 5/s}, {limit: 6/s}]", "this limit never applies"),
        ('[{from: "08:00", to: "18:00"}]', "rate has no limit"),
        ("[{until: 3, limit: 5/s}]", "rate has no setting 'until'"),
    ],
)
def test_a_fault_is_reported_with_what_to_write(written: str, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(FILE.format(rate=written))
    assert fault in str(raised.value)
    assert "isthmus.yaml:4:" in str(raised.value)


def test_the_first_part_that_holds_counts() -> None:
    rate = Rate.parse("100/s 08:00-18:00, 0/s 12:00-13:00, 5/s 17:00-19:00, 500/s")
    found = {hour: part.limit if (part := rate.at(hour * HOUR)[0]) else "" for hour in (7, 8, 12, 17, 18, 19)}
    assert found == {7: "500/s", 8: "100/s", 12: "100/s", 17: "100/s", 18: "5/s", 19: "500/s"}
    # Bounds within another part change nothing.
    assert rate.at(8 * HOUR)[1] == 10 * HOUR
    assert rate.at(19 * HOUR)[1] == 13 * HOUR


def test_a_part_may_pass_midnight() -> None:
    rate = Rate.parse("1/s 22:00-06:00")
    assert [rate.at(hour * HOUR)[0] is not None for hour in (21, 22, 23, 0, 5, 6)] == [
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert rate.at(23 * HOUR)[1] == 7 * HOUR
    assert rate.at(7 * HOUR) == (None, 15 * HOUR)


def test_one_limit_holds_always() -> None:
    assert Rate.parse("5/m").at(0)[1] == math.inf
    assert Rate.parse("").at(0) == (None, math.inf)


def test_a_file_without_a_rate_limits_nothing() -> None:
    text = FILE.format(rate="5/s").replace(", rate: 5/s", "")
    assert {route.options.rate for route in routes(read(text))} == {""}
