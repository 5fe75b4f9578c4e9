"""The options of `format("isthmus")`."""

from __future__ import annotations

import json

import pytest

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.bridge.spark.option import ReadOptions
from isthmus.errors import ConfigError

ROUTES = tuple(
    RouteSpec(name=name, source=End("servicebus", "ewr", {"entity": name}), target=End("servicebus", "jfk"))
    for name in ("a", "b")
)
TEXT = json.dumps([route.to_json() for route in ROUTES])


def test_routes_are_read_from_json() -> None:
    options = ReadOptions.read({"routes": TEXT, "slots": "2", "checkpointlocation": "/x"})
    assert options.routes == ROUTES
    assert (options.slots, options.flush_ms, options.address) == (2, 1.0, None)


def test_names_ignore_case_and_underscores() -> None:
    options = ReadOptions.read({"Query": "q", "CONTROL": "127.0.0.1:1", "controltoken": "planted"})
    assert options.address == ("127.0.0.1:1", "planted")


def test_everything_wrong_is_reported_at_once_i1() -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.read({"routs": "[]", "slots": "0", "flush_ms": "soon"})
    text = str(caught.value)
    for part in ("no option 'routs'; write routes", "slots", "flush_ms", "neither control nor routes is given"):
        assert part in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"routes": "{"}, "routes is no JSON list of routes"),
        ({"routes": '[{"name": "a"}]'}, "routes is no JSON list of routes"),
        ({"routes": TEXT, "control": "h:1", "control_token": "t", "query": "q"}, "control and routes are both given"),
        ({"control": "h:1", "query": "q"}, "control is given without control_token or query"),
        ({"routes": json.dumps([ROUTES[0].to_json()] * 2)}, "two routes have the same name"),
    ],
)
def test_options_at_odds_are_refused_i1(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ReadOptions.read(options)


def test_the_key_is_in_no_text_i2() -> None:
    assert "planted" not in repr(ReadOptions.read({"query": "q", "control": "h:1", "control_token": "planted"}))
