from __future__ import annotations

import pickle

import pytest

from isthmus.connectors.servicebus.option import SPARK_OPTIONS, SinkOptions, SourceOptions, spec_of
from isthmus.errors import ConfigError

OPTIONS = {"connection": "env:EWR_CONNECTION", "entity": "orders"}


def faults(kind: type[SourceOptions | SinkOptions], **options: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        kind.read({**OPTIONS, **options})
    return [str(fault) for fault in raised.value.faults]


def test_names_count_without_case_and_underscores_and_values_get_their_types() -> None:
    options = SourceOptions.read(
        {**OPTIONS, "BATCHseconds": "2.5", "batch_rows": "7", "ordered": "FALSE", "ca_file": ""}
    )
    assert (options.batch_seconds, options.batch_rows, options.ordered, options.ca_file) == (2.5, 7, False, "")
    assert options.connection == "env:EWR_CONNECTION"
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_default_is_what_the_declaration_parses() -> None:
    for kind in (SourceOptions, SinkOptions):
        for setting in spec_of(kind).settings:
            assert setting.description.endswith(".")
            if setting.default != "":
                assert setting.parse(setting.show(setting.default)) == setting.default


def test_every_wrong_option_is_named_at_once_i1() -> None:
    assert faults(SourceOptions, idel_seconds="5", window="0", mode="cooked", batch_seconds="nan", ordered="maybe") == [
        "servicebus read has no option 'idel_seconds'; write idle_seconds",
        "servicebus read: window is below its least value; write window: 1 or more",
        "servicebus read: mode has an unknown value; write mode: raw or decoded",
        "servicebus read: batch_seconds is not a number",
        "servicebus read: ordered is neither true nor false; write ordered: true or false",
    ]


def test_another_settlement_is_refused_with_the_known_ones() -> None:
    (fault,) = faults(SourceOptions, settle="sink")
    assert fault.startswith(
        "servicebus read has no option 'settle'; remove it: a streaming read settles a batch once Spark"
    )
    assert "isthmus run" in fault


def test_an_option_of_the_other_side_is_reported_so() -> None:
    assert faults(SourceOptions, batchMessages="5") == [
        "servicebus read has no option 'batchMessages'; remove it: only the options of a servicebus write have it"
    ]
    assert faults(SinkOptions, idle_seconds="5")[0].startswith("servicebus write has no option 'idle_seconds'; remove")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"partitions": "2"}, "servicebus read: partitions: an ordered read has one; write ordered=false for more"),
        ({"host": "h.example"}, "servicebus read: connection and host are both given; write one of them"),
        ({"entity": "/"}, "servicebus read: entity is missing; write a queue, topic, or topic/Subscriptions/name"),
    ],
)
def test_options_at_odds_are_refused(options: dict[str, str], fault: str) -> None:
    assert faults(SourceOptions, **options) == [fault]


def test_a_write_wants_origin_and_source_whole() -> None:
    assert faults(SinkOptions, origin="ewr", source_entity="orders") == [
        "servicebus write: origin has no alias; write alias/entity",
        "servicebus write: source_connection and source_entity go together; write both or none",
    ]


def test_a_connection_string_is_refused_and_not_repeated_i2() -> None:
    reported = faults(SourceOptions, connection="Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=hunter2")
    assert len(reported) == 1
    assert "hunter2" not in reported[0]
    assert "env:NAME" in reported[0]


def test_what_spark_hands_over_itself_passes_i3() -> None:
    assert (
        SinkOptions.read(OPTIONS | {name.lower(): "x" for name in SPARK_OPTIONS if name != "provider"}).window == 8000
    )


def test_a_tables_options_serve_both_sides_i3() -> None:
    table = {**OPTIONS, "provider": "servicebus", "owner": "me", "batch_messages": "7", "mode": "decoded"}
    table |= {f"option.{name}": value for name, value in table.items()}
    assert SourceOptions.read(table).mode == "decoded"
    assert SinkOptions.read(table).batch_messages == 7
    with pytest.raises(ConfigError, match="batchmesages"):
        SinkOptions.read({**table, "batchmesages": "7"})
