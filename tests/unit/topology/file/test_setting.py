from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.topology.file.setting import Kind, Setting, SettingError


def setting(kind: Kind, **more: object) -> Setting:
    return Setting(name="it", kind=kind, description="It.", example="x", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Kind.INTEGER, "5_000", 5000),
        (Kind.BOOLEAN, "Yes", True),
        (Kind.BOOLEAN, "off", False),
        (Kind.DURATION, "10m", 600_000),
        (Kind.ENTITY, "airport/boards.v1", "airport/boards.v1"),
        (Kind.SUBSCRIPTION, "a" * 50, "a" * 50),
        (Kind.ALIAS, "no", "no"),
        (Kind.HOST, "Contoso.servicebus.windows.net:5671", "contoso.servicebus.windows.net:5671"),
        (Kind.PROPERTY, "seen elsewhere", "seen elsewhere"),
        (Kind.TEXT, "x y", "x y"),
    ],
)
def test_values_are_parsed(kind: Kind, text: str, value: object) -> None:
    assert setting(kind).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.INTEGER, "5.0"),
        (Kind.BOOLEAN, "maybe"),
        (Kind.DURATION, "10"),
        (Kind.ENTITY, "/flights"),
        (Kind.ENTITY, "a" * 261),
        (Kind.SUBSCRIPTION, "a/b"),
        (Kind.SUBSCRIPTION, "a" * 51),
        (Kind.ALIAS, "a.b"),
        (Kind.HOST, "https://host/"),
        (Kind.PROPERTY, "repl-origin"),
        (Kind.PROPERTY, "RuleName"),
        (Kind.PROPERTY, "a\x00b"),
        (Kind.TEXT, " "),
    ],
)
def test_other_values_are_refused(kind: Kind, text: str) -> None:
    with pytest.raises(SettingError) as raised:
        setting(kind).parse(text)
    assert raised.value.message
    assert raised.value.hint


def test_limits_are_named_in_the_settings_own_unit() -> None:
    with pytest.raises(SettingError) as raised:
        setting(Kind.DURATION, minimum=20_000).parse("5s")
    assert raised.value.hint == "write it: 20s or more"


def test_i2_a_planned_choice_is_refused_as_not_available_yet() -> None:
    choice = setting(Kind.CHOICE, choices=("now",), planned=("existing",))
    with pytest.raises(SettingError, match="not available yet"):
        choice.parse("existing")
    with pytest.raises(SettingError, match="unknown value"):
        choice.parse("later")


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_is_shown_as_it_is_read(duration_ms: int) -> None:
    duration = setting(Kind.DURATION, may_be_off=True)
    assert duration.parse(duration.show(duration_ms)) == duration_ms
