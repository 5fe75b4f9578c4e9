"""`spark:` of the federation file: where Spark runs, which settings are refused, how many slots a run needs."""

from __future__ import annotations

import pytest

from isthmus.topology import lint, read
from isthmus.topology.file.setting import SettingError
from isthmus.topology.linter import warnings
from isthmus.topology.spark import (
    REFUSED,
    ControlAddress,
    SparkSettings,
    control_warning,
    parse_master,
    slots_needed,
    slots_warning,
)

HEAD = (
    "isthmus: 1\nnamespaces: {ewr: {connection: env:A}, jfk: {connection: env:B}}\n"
    "tasks: {flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}}\n"
)


def test_without_it_spark_runs_on_this_machine() -> None:
    assert read(HEAD).spark == SparkSettings()
    assert SparkSettings().options() == {}


def test_the_drivers_address_is_the_control_ports() -> None:
    spark = read(
        HEAD + "spark: {master: 'spark://m:7077', control: {host: 0.0.0.0, port: 7420, advertised: d.example}}\n"
    ).spark
    assert spark.control == ControlAddress("0.0.0.0", 7420, "d.example")
    assert spark.options() == {
        "spark.driver.host": "d.example",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.master": "spark://m:7077",
    }


def test_a_setting_wins_over_the_control_ports_address() -> None:
    text = "spark: {control: {host: 10.0.0.5}, settings: {spark.driver.host: d.example}}\n"
    assert read(HEAD + text).spark.options()["spark.driver.host"] == "d.example"


@pytest.mark.parametrize("name", REFUSED)
def test_i1_what_isthmus_needs_itself_is_refused_with_the_reason(name: str) -> None:
    (fault,) = lint(f"{HEAD}spark: {{settings: {{{name}: x}}}}\n")
    assert fault.message == f"{name} cannot be set: {REFUSED[name]}"


@pytest.mark.parametrize(
    "name", ["spark.authenticate.secret", "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.access.key"]
)
def test_i2_a_secret_is_refused_and_not_repeated(name: str) -> None:
    (fault,) = lint(f"{HEAD}spark: {{settings: {{{name}: hunter2}}}}\n")
    assert "SPARK_CONF_DIR" in fault.hint
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize(
    "master",
    ["local", "local[4]", "local[*]", "spark://a:7077", "spark://a:7077,b:7077", "yarn", "k8s://https://h:443"],
)
def test_masters(master: str) -> None:
    assert parse_master(f" {master} ") == master


@pytest.mark.parametrize("master", ["", "local[0]", "local[2,4]", "spark://a", "http://a:7077", "yarn-client"])
def test_what_is_no_master(master: str) -> None:
    with pytest.raises(SettingError):
        parse_master(master)


def test_lint_warns_where_the_slots_are_known_and_too_few() -> None:
    needed = slots_needed(routes=2)
    (warned,) = warnings(f"{HEAD}spark: {{master: 'local[{needed - 1}]'}}\n")
    assert (warned.line, warned.hint) == (4, f"write local[{needed}]")
    assert warned.message.startswith(
        f"master local[{needed - 1}] gives {needed - 1} task slots and the run needs {needed}"
    )
    assert warnings(f"{HEAD}spark: {{master: 'local[{needed}]'}}\n") == []


@pytest.mark.parametrize(
    ("spark", "is_warned"),
    [
        (SparkSettings(), False),
        (SparkSettings("local"), True),
        (SparkSettings("local[*]"), False),
        (SparkSettings("spark://m:7077"), False),
        (SparkSettings("spark://m:7077", {"spark.cores.max": "4"}), True),
        (SparkSettings("spark://m:7077", {"spark.cores.max": "5"}), False),
    ],
)
def test_slots_are_counted_where_they_are_known(spark: SparkSettings, is_warned: bool) -> None:
    assert (slots_warning(spark, 5) is not None) == is_warned


def test_lint_warns_of_a_control_port_that_executors_do_not_reach() -> None:
    (warned,) = warnings(HEAD + "spark: {master: 'spark://m.example:7077'}\n")
    assert (
        warned.message
        == "executors of spark://m.example:7077 on other machines cannot reach the control port at 127.0.0.1"
    )
    assert warnings(HEAD + "spark: {master: 'spark://m.example:7077', control: {host: 10.0.0.5}}\n") == []


@pytest.mark.parametrize(
    ("master", "is_warned"),
    [
        ("", False),
        ("local[9]", False),
        ("spark://127.0.0.1:7077", False),
        ("spark://localhost:7077", False),
        ("spark://127.0.0.1.example:7077", True),
        ("yarn", True),
        ("k8s://https://h:443", True),
    ],
)
def test_a_loopback_control_port_is_right_for_this_machine_only(master: str, is_warned: bool) -> None:
    assert (control_warning(SparkSettings(master)) is not None) == is_warned


@pytest.mark.parametrize(
    ("slots", "has_unordered", "readers"), [(0, False, 1), (0, True, 2), (1, True, 1), (4, False, 4), (4, True, 4)]
)
def test_a_query_has_one_reader_and_two_where_a_route_is_unordered(
    slots: int, has_unordered: bool, readers: int
) -> None:
    assert SparkSettings(slots=slots).query_slots(has_unordered=has_unordered) == readers


@pytest.mark.parametrize(("ordering", "needed"), [("ordered", 5), ("none", 6)])
def test_lint_counts_the_readers_of_a_query(ordering: str, needed: int) -> None:
    text = HEAD.replace("topic: flights", f"topic: flights, ordering: {ordering}")
    assert warnings(f"{text}spark: {{master: 'local[{needed}]'}}\n") == []
    (warned,) = warnings(f"{text}spark: {{master: 'local[{needed - 1}]'}}\n")
    assert f"the run needs {needed}" in warned.message
    (warned,) = warnings(f"{text}spark: {{master: 'local[{needed}]', slots: 7}}\n")
    assert warned.hint == "write local[11]"


@pytest.mark.parametrize(
    "uri",
    ["hdfs://n:8020/isthmus/f", "s3a://bucket/f", "abfss://c@a.dfs.core.windows.net/f", "file:///var/lib/isthmus/f"],
)
def test_checkpoints_may_lie_at_a_uri(uri: str) -> None:
    assert read(f"{HEAD}spark: {{checkpoints: {uri!r}}}\n").spark.checkpoints == uri


@pytest.mark.parametrize("uri", ["/var/lib/isthmus", "kept", "hdfs://n:8020", "s3a://bucket/f?x=1"])
def test_what_is_no_uri_of_checkpoints_is_refused(uri: str) -> None:
    (fault,) = lint(f"{HEAD}spark: {{checkpoints: {uri!r}}}\n")
    assert fault.message == "checkpoints is no URI"


def test_i2_a_key_in_the_uri_of_checkpoints_is_refused_and_not_repeated() -> None:
    (fault,) = lint(f"{HEAD}spark: {{checkpoints: 's3a://name:hunter2@bucket/f'}}\n")
    assert fault.message == "a secret is in the file"
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize(
    ("master", "is_remote"), [("", False), ("local[4]", False), ("spark://h:7077", True), ("yarn", True)]
)
def test_executors_are_processes_of_their_own_unless_spark_is_local(master: str, is_remote: bool) -> None:
    assert SparkSettings(master).is_remote == is_remote
