from __future__ import annotations

import pytest

from isthmus.connectors.spec import Kind, Setting, Spec, parse_options, shown
from isthmus.errors import ConfigError

SPEC = Spec(
    "example",
    "An example.",
    (
        Setting(name="connection", kind=Kind.REFERENCE, secret=True, required=True, description="", example="env:A"),
        Setting(name="maxRows", kind=Kind.INTEGER, default=10, minimum=1, description=""),
        Setting(name="linger", kind=Kind.DURATION, default=1, description="", example="1ms"),
        Setting(name="eager", kind=Kind.BOOLEAN, default=False, description=""),
        Setting(name="password", kind=Kind.TEXT, secret=True, description=""),
        Setting(name="later", kind=Kind.TEXT, available=False, description=""),
    ),
)


def test_options_are_read_without_case_and_with_defaults() -> None:
    values = parse_options(SPEC, {"CONNECTION": "env:X", "maxrows": "20", "path": "p"}, ignore=("path",))
    assert str(values.pop("connection")) == "env:X"
    assert values == {"maxRows": 20, "linger": 1, "eager": False, "password": None}


def test_i1_every_wrong_option_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_options(SPEC, {"maxRows": "0", "linger": "5", "eagr": "true", "later": "x", "eager": "perhaps"})
    assert [str(fault) for fault in raised.value.faults] == [
        "example: maxRows is below its least value; write maxRows: 1 or more",
        "example: linger is not a duration with a unit; write linger: 1ms",
        "example has no option 'eagr'; write eager",
        "example: later is not available yet; remove it",
        "example: eager is neither true nor false; write eager: true or false",
        "example needs connection; write connection=env:A",
    ]


def test_i2_shown_keeps_references_and_hides_secrets() -> None:
    options = {"connection": "env:A", "password": "hunter2", "url": "amqps://u:hunter2@h", "maxRows": "5"}
    assert shown(SPEC, options) == {
        "connection": "env:A",
        "password": "***",
        "url": "amqps://u:***@h",
        "maxRows": "5",
    }
    assert shown(SPEC, {"connection": "Endpoint=sb://h;SharedAccessKey=hunter2"})["connection"] == "***"
