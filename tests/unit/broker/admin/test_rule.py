from __future__ import annotations

import math
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.admin.document import read
from isthmus.broker.admin.rule import read_rule, write_rule
from isthmus.entities.catalog.description import (
    CorrelationFilter,
    DateTime,
    Duration,
    FalseFilter,
    Parameter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from isthmus.errors import InvalidArgumentError

NAMESPACE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"

texts = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=20)
values: st.SearchStrategy[Parameter] = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    st.uuids(),
    st.builds(DateTime, st.integers(-62_135_596_800_000, 253_402_300_799_999), st.booleans()),
    st.builds(Duration, st.integers(-(10**14), 10**14)),
    st.none(),
)
maps = st.dictionaries(texts.filter(bool), values, max_size=4)
optional = st.none() | texts
filters = st.one_of(
    st.builds(TrueFilter),
    st.builds(FalseFilter),
    st.builds(SqlFilter, texts, maps, st.just(20), st.booleans()),
    st.builds(CorrelationFilter, *[optional] * 8, maps),
)
actions = st.none() | st.builds(SqlAction, texts, maps, st.just(20), st.booleans())


def parse(inside: str, name: str = "") -> RuleDescription:
    text = f'<RuleDescription xmlns="{NAMESPACE}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inside}</RuleDescription>'
    return read_rule(read(text.encode()), name, created_at_ms=7)


@given(filters, actions)
def test_i1_what_is_written_reads_back_equal(given_filter: object, action: SqlAction | None) -> None:
    rule = RuleDescription("r", given_filter, action, 7)  # type: ignore[arg-type]
    assert read_rule(read(write_rule(rule).encode()), created_at_ms=7) == rule


def test_i1_types_of_values_stay() -> None:
    properties: dict[str, Parameter] = {
        "s": "1",
        "i": 1,
        "l": 2**40,
        "d": 1.0,
        "b": True,
        "u": uuid.UUID(int=5),
        "n": math.inf,
    }
    rule = RuleDescription("r", CorrelationFilter(properties=properties))
    text = write_rule(rule)
    for kind in ("string", "int", "long", "double", "boolean", "guid"):
        # The JavaScript client drops five characters of the type's name.
        assert f'i:type="d6p1:{kind}" xmlns:d6p1="' in text
    again = read_rule(read(text.encode()), created_at_ms=0).filter
    assert isinstance(again, CorrelationFilter)
    assert {name: type(value) for name, value in again.properties.items()} == {
        name: type(value) for name, value in properties.items()
    }


def test_i2_there_is_always_an_action() -> None:
    assert '<Action i:type="EmptyRuleAction"/>' in write_rule(RuleDescription("r"))


def test_constants_have_the_service_s_texts() -> None:
    assert '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression>' in write_rule(RuleDescription("r"))
    assert '<Filter i:type="FalseFilter"><SqlExpression>1=0</SqlExpression>' in write_rule(
        RuleDescription("r", FalseFilter())
    )


def test_names() -> None:
    assert parse("<Name>own</Name>").name == "own"
    assert parse("<Name>own</Name>", "from-url").name == "from-url"
    assert parse("").name == "$Default"
    assert parse("").filter == TrueFilter()
    assert parse("").created_at_ms == 7


@pytest.mark.parametrize("prefix", ["l28", "d6p1", "ns0"])
def test_prefixes_do_not_matter(prefix: str) -> None:
    inside = (
        '<Filter xmlns:p4="http://www.w3.org/2001/XMLSchema-instance" p4:type="CorrelationFilter"><Properties>'
        "<KeyValueOfstringanyType><Key>k</Key>"
        f'<Value p4:type="{prefix}:long" xmlns:{prefix}="http://www.w3.org/2001/XMLSchema">5</Value>'
        "</KeyValueOfstringanyType></Properties></Filter>"
    )
    assert parse(inside).filter == CorrelationFilter(properties={"k": 5})


def value(kind: str, text: str) -> Parameter:
    found = parse(
        '<Filter i:type="SqlFilter"><SqlExpression>1=1</SqlExpression><Parameters><KeyValueOfstringanyType>'
        f'<Key>@k</Key><Value i:type="x:{kind}">{text}</Value></KeyValueOfstringanyType></Parameters></Filter>'
    ).filter
    assert isinstance(found, SqlFilter)
    return found.parameters["@k"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int", "-5", -5),
        ("short", "5", 5),
        ("double", "INF", math.inf),
        ("decimal", "1.50", 1.5),
        ("boolean", "1", True),
        ("boolean", "False", False),
        ("dateTime", "2020-07-05T11:12:13", DateTime(1_593_947_533_000, zoned=False)),
        ("dateTime", "2020-07-05T11:12:13.5Z", DateTime(1_593_947_533_500)),
        ("dateTime", "2020-07-05T13:12:13+02:00", DateTime(1_593_947_533_000)),
        ("date", "2020-07-05", DateTime(1_593_907_200_000, zoned=False)),
        ("duration", "P1DT2H3M", Duration(93_780_000)),
        ("duration", "-PT1S", Duration(-1000)),
        ("guid", "00000000-0000-0000-0000-000000000005", uuid.UUID(int=5)),
        ("base64Binary", "AQI=", b"\x01\x02"),
        ("char", "65", "A"),
    ],
)
def test_reads_values(kind: str, text: str, expected: Parameter) -> None:
    assert value(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "five"),
        ("long", str(2**63)),
        ("double", "x"),
        ("boolean", "maybe"),
        ("dateTime", "yesterday"),
        ("char", "55296"),
        ("duration", "1m"),
        ("guid", "5"),
        ("base64Binary", "%"),
        ("char", "A"),
        ("anyURI", "x"),
        ("int", "9" * 5000),
    ],
)
def test_refuses_values(kind: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        value(kind, text)


@pytest.mark.parametrize(
    "inside",
    [
        '<Filter i:type="RegexFilter"/>',
        "<Filter/>",
        '<Filter i:type="SqlFilter"/>',
        '<Filter i:type="SqlFilter"><SqlExpression>1=1</SqlExpression><CompatibilityLevel>x</CompatibilityLevel></Filter>',
        '<Action i:type="SqlRuleAction"/>',
        '<Action i:type="Explode"/>',
        '<Filter i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key></KeyValueOfstringanyType></Properties></Filter>',
    ],
)
def test_refuses_what_it_does_not_know(inside: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse(inside)
