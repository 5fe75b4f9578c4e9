"""The Spark back end of the rules language against the fixtures of the Python back end.

Every expression is evaluated on the messages of all fixtures, so that the two back ends are compared on far more pairs
than the files name; they must agree on each (rule_column.I1, I2), and no row may end a query (I3). Spark takes half a second for
each expression: `make test` evaluates every fourth, `make soak` all.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from harness.fixture.rule_fixture import Case, load
from isthmus.errors import InvalidArgumentError
from isthmus.replication.rule_cell import SYSTEM_COLUMNS, USER_PROPERTIES_TYPE, RuleColumns, micros
from isthmus.replication.rule_column import filter_column
from isthmus.replication.spark_session import create_spark_session
from isthmus.rules import (
    CorrelationFilter,
    DictView,
    FalseFilter,
    Filter,
    FilterError,
    TrueFilter,
    Value,
    parse_filter,
)
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import Kind, kind_of

pytestmark = pytest.mark.spark

EXPRESSIONS_PER_JOB = 40
SHORT_RUN_STRIDE = 4
FIELDS = {
    Kind.BOOL: 0,
    Kind.LONG: 1,
    Kind.DOUBLE: 2,
    Kind.STRING: 3,
    Kind.DATETIME: 4,
    Kind.TIMESPAN: 5,
    Kind.UUID: 6,
    Kind.BINARY: 7,
}
SYSTEM_TYPES = {
    Kind.STRING: "string",
    Kind.LONG: "bigint",
    Kind.DATETIME: "timestamp",
    Kind.TIMESPAN: "bigint",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder: Path = tmp_path_factory.mktemp("spark")
    session = create_spark_session(
        "rules",
        routes=1,
        work_directory=folder,
        options={
            "spark.sql.session.timeZone": "UTC",
            # Hundreds of small expressions: compiling each costs more than all rows together.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def messages() -> list[tuple[dict[str, Value], dict[str, Value]]]:
    """The messages of all fixtures, each once."""
    distinct = {case.given: case for case in load("filter")}
    return [case.message for case in distinct.values()]


@pytest.fixture(scope="module")
def frame(spark: SparkSession, messages: list[tuple[dict[str, Value], dict[str, Value]]]) -> DataFrame:
    columns = ", ".join(f"{SYSTEM_COLUMNS[name]} {SYSTEM_TYPES[one.kind]}" for name, one in SYSTEM_PROPERTIES.items())
    rows = [(number, user_map(user), *system_values(sys)) for number, (sys, user) in enumerate(messages)]
    return spark.createDataFrame(rows, f"number int, application_properties {USER_PROPERTIES_TYPE}, {columns}").cache()


def user_map(user: dict[str, Value]) -> dict[str, tuple[Any, ...] | None]:
    found: dict[str, tuple[Any, ...] | None] = {}
    for name, value in user.items():
        kind = kind_of(value)
        fields: list[Any] = [None] * len(FIELDS)
        if kind is None:
            found[name] = None
            continue
        fields[FIELDS[kind]] = column_value(value)
        found[name] = tuple(fields)
    return found


def column_value(value: Value) -> Any:
    if isinstance(value, timedelta):
        return micros(value)
    return str(value).upper() if isinstance(value, UUID) else value


def system_values(sys: dict[str, Value]) -> list[Any]:
    values = []
    for name in SYSTEM_PROPERTIES:
        value = sys.get(name)
        values.append(micros(value) // 1000 if isinstance(value, timedelta) else value)
    return values


def by_closure(rule: Filter | CorrelationFilter, view: DictView) -> str:
    try:
        return str(rule.matches(view))
    except FilterError:
        return "failed"


def by_column(row: Row, name: str) -> str:
    return "failed" if row[f"{name}_failed"] else str(row[name])


def judged(frame: DataFrame, rules: dict[str, Any]) -> list[Row]:
    columns = RuleColumns.of(frame)
    selected = []
    for name, rule in rules.items():
        verdict, failed = filter_column(rule, columns)
        selected += [verdict.alias(name), failed.alias(f"{name}_failed")]
    return frame.select("number", *selected).orderBy("number").collect()


def test_both_back_ends_agree_on_every_expression_and_message(
    request: pytest.FixtureRequest, frame: DataFrame, messages: list[tuple[dict[str, Value], dict[str, Value]]]
) -> None:
    distinct: dict[str, Case] = {}
    for case in load("filter"):
        distinct.setdefault(case.expression + repr(case.parameters), case)
    cases = [case for case in distinct.values() if "newid" not in case.expression.lower()]
    if not request.config.getoption("--soak"):
        cases = cases[::SHORT_RUN_STRIDE]
    views = [DictView(*message) for message in messages]
    differing: list[str] = []
    for start in range(0, len(cases), EXPRESSIONS_PER_JOB):
        chunk = cases[start : start + EXPRESSIONS_PER_JOB]
        rules = {f"e{n}": parse_filter(case.expression, case.parameters) for n, case in enumerate(chunk)}
        for row in judged(frame, rules):
            for name, rule in rules.items():
                expected, found = by_closure(rule, views[row.number]), by_column(row, name)
                if expected != found:
                    differing.append(f"{rule.text!r} on {messages[row.number]}: closure {expected}, column {found}")
    assert not differing, "\n".join(differing[:20]) + f"\n{len(differing)} differ"


def test_newid_is_new_in_every_row(frame: DataFrame) -> None:
    rows = judged(frame, {"same": parse_filter("newid() = newid()"), "text": parse_filter("newid() = 'x'")})
    assert {row.same for row in rows} == {False}
    assert {row.text for row in rows} == {None}


def test_correlation_and_constant_filters(
    frame: DataFrame, messages: list[tuple[dict[str, Value], dict[str, Value]]]
) -> None:
    rules: dict[str, Any] = {
        "label": CorrelationFilter({"Label": "x"}),
        "color": CorrelationFilter(user={"Color": "red"}),
        "number": CorrelationFilter(user={"a": 5}),
        "both": CorrelationFilter({"To": "Store1"}, {"StoreId": "Store8"}),
        "all": TrueFilter(),
        "none": FalseFilter(),
    }
    views = [DictView(*message) for message in messages]
    for row in judged(frame.withColumnRenamed("number", "number"), {f"r_{name}": one for name, one in rules.items()}):
        for name, rule in rules.items():
            assert by_column(row, f"r_{name}") == by_closure(rule, views[row.number]), (name, messages[row.number])


def test_a_verdict_filters_a_data_frame(frame: DataFrame) -> None:
    verdict, _ = filter_column(parse_filter("replication IS NULL OR replication <> 1"), RuleColumns.of(frame))
    marked = frame.filter(~verdict).select(F.map_keys("application_properties").alias("names")).collect()
    assert marked
    assert all("replication" in [name.lower() for name in row.names] for row in marked)


def test_a_system_property_without_a_column_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], f"application_properties {USER_PROPERTIES_TYPE}, subject string")
    with pytest.raises(InvalidArgumentError, match="message_id"):
        filter_column(parse_filter("sys.MessageId = 'x'"), RuleColumns.of(frame))


def test_an_encoded_value_of_another_type_compares_with_nothing(spark: SparkSession) -> None:
    described = USER_PROPERTIES_TYPE.replace("binary: binary", "binary: binary, type: string")
    raw, other = [None] * 7 + [b"x", "binary"], [None] * 7 + [b"x", "amqp"]
    frame = spark.createDataFrame(
        [(0, {"a": raw}), (1, {"a": other})], f"number int, application_properties {described}"
    )
    equal = parse_filter("a = @p", {"p": b"x"})
    assert [row.e for row in judged(frame, {"e": equal})] == [True, None]
    assert [row.e for row in judged(frame, {"e": parse_filter("a IS NULL OR NOT EXISTS(a)")})] == [False, False]


def test_a_data_frame_without_properties_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgumentError, match="application_properties"):
        RuleColumns.of(spark.range(1))
