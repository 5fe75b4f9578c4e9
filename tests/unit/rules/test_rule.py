"""Filters, actions and correlation filters as values: pickling, equality, limits, parameters, changes."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.rules import (
    MISSING,
    REMOVED,
    Assignment,
    Changes,
    CorrelationFilter,
    DictView,
    FalseFilter,
    FilterError,
    RuleSyntaxError,
    TrueFilter,
    parse_action,
    parse_filter,
)
from isthmus.rules.evaluation.conversion import parse_timespan, show_timespan
from isthmus.rules.value import LONG_MAX


class Long(int):
    """Like the integers of a wire format: a subclass of int."""


class Lazy:
    """A view that remembers what it was asked."""

    def __init__(self, **user: object) -> None:
        self.asked: list[str] = []
        self.properties = user

    def user(self, name: str, /) -> object:
        self.asked.append(name)
        return self.properties.get(name, MISSING)

    def sys(self, name: str, /) -> object:
        self.asked.append(f"sys.{name}")
        return MISSING


@pytest.mark.parametrize(
    "rule",
    [
        parse_filter("a = @p", {"p": 5}),
        parse_action("SET a = @p; REMOVE sys.Label", {"@P": "x"}),
        CorrelationFilter({"Label": "x"}, {"a": 1}),
        TrueFilter(),
        FalseFilter(),
    ],
)
def test_rules_survive_pickling_and_compare_by_value(rule: object) -> None:
    copy = pickle.loads(pickle.dumps(rule))
    assert copy == rule
    assert hash(copy) == hash(rule)
    assert repr(copy) == repr(rule)


def test_errors_survive_pickling() -> None:
    with pytest.raises(RuleSyntaxError) as caught:
        parse_filter("a = = 1\nAND b == 2")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert copy.faults == caught.value.faults
    assert str(copy) == str(caught.value)
    assert isinstance(copy, InvalidArgumentError)
    assert copy.to_dict()["column"] == 5
    assert "line 2, column 7" in str(copy)


def test_a_view_is_asked_only_for_what_the_verdict_needs() -> None:
    view = Lazy(a=1)
    assert parse_filter("a = 1 OR b = 2").matches(view) is True
    assert view.asked == ["a"]
    view = Lazy(a=2)
    assert parse_filter("A = 1 AND b = 2").matches(view) is False
    assert view.asked == ["a"]
    view = Lazy()
    parse_filter("sys.subject = 'x' OR [Big Name] = 1").matches(view)
    assert view.asked == ["sys.Label", "big name"]


def test_subclasses_of_the_languages_types_count_as_them() -> None:
    assert parse_filter("a = 5").matches(DictView({}, {"a": Long(5)})) is True
    assert parse_filter("a IN (4, 5)").matches(DictView({}, {"a": Long(5)})) is True
    assert parse_filter("a + 1 = 6").matches(DictView({}, {"a": Long(5)})) is True
    changes = parse_action("SET b = a").apply(DictView({}, {"a": Long(5)}))
    assert type(changes.user["b"].value) is int


def test_a_value_of_an_unknown_type_exists_and_compares_with_nothing() -> None:
    view = DictView({}, {"a": [1]})  # type: ignore[dict-item]  # what no message's property should be
    assert parse_filter("EXISTS(a) AND a IS NOT NULL").matches(view) is True
    assert parse_filter("a = 1 OR a <> 1 OR a IN (1)").matches(view) is None


def test_a_naive_time_is_taken_as_utc() -> None:
    naive = datetime(2013, 1, 1)  # noqa: DTZ001  # that is the point
    found = parse_filter("a = @p", {"p": naive})
    assert found.matches(DictView({}, {"a": datetime(2013, 1, 1, tzinfo=UTC)})) is True
    assert found.matches(DictView({}, {"a": naive})) is True


def test_the_limit_of_characters() -> None:
    fits = "a = '" + "x" * (1024 - 6) + "'"
    assert len(fits) == 1024
    parse_filter(fits)
    with pytest.raises(RuleSyntaxError) as caught:
        parse_filter(fits + " ")
    assert (caught.value.line, caught.value.column) == (1, 1025)
    with pytest.raises(RuleSyntaxError):
        parse_action("SET " + fits)


def test_the_limit_of_statements() -> None:
    assert len(parse_action("SET a=1;" * 32).statements) == 32
    with pytest.raises(RuleSyntaxError, match="at most 32"):
        parse_action("SET a=1;" * 33)


def test_parameters_are_found_in_any_case_with_or_without_sign() -> None:
    for name in ("p1", "@p1", "@P1"):
        assert parse_filter("a = @P1", {name: 1}).matches(DictView({}, {"a": 1})) is True
    with pytest.raises(RuleSyntaxError, match="has a value of type list"):
        parse_filter("a = @p", {"p": [1]})  # type: ignore[dict-item]  # what a caller may get wrong


def test_two_names_that_differ_in_case_are_one_property() -> None:
    assert parse_filter("a = 1").matches(DictView({}, {"A": 1, "a": 2})) is True


def test_changes_name_what_becomes_of_each_property() -> None:
    action = parse_action("SET Mark = 1; REMOVE Old; SET sys.Label = 'x'; REMOVE sys.To; SET sys.ReplyTo = NULL")
    changes = action.apply(DictView({"To": "t"}, {"mark": 0.5}))
    assert changes == Changes(
        user={"mark": Assignment("Mark", 1.0), "old": Assignment("Old", REMOVED)},
        sys={"Label": "x", "To": REMOVED, "ReplyTo": REMOVED},
    )
    sys, user = {"Subject": "s", "To": "t"}, {"MARK": 0.5, "OLD": 1}
    changes.apply_to(sys, user)  # type: ignore[arg-type]  # narrower dicts
    assert (sys, user) == ({"Subject": "x"}, {"MARK": 1.0})


def test_an_action_does_not_touch_the_view() -> None:
    """action.I1."""
    user = {"a": 1, "c": 0}
    with pytest.raises(FilterError, match="divides by zero"):
        parse_action("SET a = 2; SET b = 1 / c").apply(DictView({}, user))
    assert user == {"a": 1, "c": 0}


@pytest.mark.parametrize(
    ("sys", "user", "expected"),
    [
        ({}, {}, True),
        ({"Label": "x"}, {}, True),
        ({"label": "x"}, {}, True),
        ({"Subject": "x"}, {}, True),
        ({"Label": "X"}, {}, False),
        ({"To": "t"}, {}, False),
        ({"Label": "x", "MessageId": "m"}, {}, True),
        ({"Label": "x", "MessageId": "n"}, {}, False),
        ({}, {"A": 5}, True),
        ({}, {"a": 5.0}, True),
        ({}, {"a": "5"}, False),
        ({}, {"a": True}, False),
        ({}, {"b": 5}, False),
        ({}, {"a": 5, "c": "y"}, True),
        ({"Label": "x"}, {"a": 5, "c": "z"}, False),
    ],
)
def test_correlation_filters(sys: dict[str, str], user: dict[str, object], expected: bool) -> None:
    found = CorrelationFilter(sys, user)  # type: ignore[arg-type]  # narrower values
    assert found.matches(DictView({"Label": "x", "MessageId": "m"}, {"a": 5, "C": "y"})) is expected


def test_a_correlation_filter_knows_its_fields() -> None:
    with pytest.raises(RuleSyntaxError, match="no field SequenceNumber") as caught:
        CorrelationFilter({"SequenceNumber": "1", "Foo": "x"})
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:2:0", 120), ("00:00:01.5", 1.5), ("1.02:03:04", 93784), ("1:2:3:4", 93784), ("-0:1", -60), ("2", 172800)],
)
def test_timespans_are_read_as_dotnet_writes_them(text: str, seconds: float) -> None:
    assert parse_timespan(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "x", "24:00:00", "0:60", "1:2:3:4:5", "0:0:60", "1.5"])
def test_what_is_no_timespan(text: str) -> None:
    assert parse_timespan(text) is None


def test_timespans_are_shown_as_dotnet_writes_them() -> None:
    for text in ("00:02:00", "1.02:03:04.5000000", "-00:00:01"):
        span = parse_timespan(text)
        assert span is not None
        assert show_timespan(span) == text


def test_overflow_of_times_fails_the_filter() -> None:
    late = {"a": datetime(9999, 12, 31, tzinfo=UTC), "b": timedelta(days=2), "c": LONG_MAX}
    with pytest.raises(FilterError):
        parse_filter("a + b > a").matches(DictView({}, late))
    with pytest.raises(FilterError, match="64 bits"):
        parse_filter("c + 1 > 0").matches(DictView({}, late))
