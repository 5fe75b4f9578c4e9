"""Lint, compared with the files of tests/fixtures/topology/faults: NAME.yaml, and NAME.txt with the faults (none: sound)."""

from __future__ import annotations

import pickle
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.topology import lint, read
from isthmus.topology.file.source import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "topology" / "faults"
FILES = sorted(FIXTURES.glob("*.yaml"))
SOUND = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_fault_is_named_at_its_place(file: Path) -> None:
    faults = lint(file.read_text(), file.name)
    expected = file.with_suffix(".txt")
    assert [str(fault) for fault in faults] == (expected.read_text().splitlines() if expected.exists() else [])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_i2_read_raises_exactly_what_lint_finds(file: Path) -> None:
    text = file.read_text()
    faults = lint(text, file.name)
    if not faults:
        assert read(text, file.name).file == file.name
        return
    with pytest.raises(ConfigError) as raised:
        read(text, file.name)
    assert list(raised.value.faults) == faults


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_fault_repeats_a_secret(file: Path) -> None:
    shown = "\n".join(map(str, lint(file.read_text(), file.name)))
    assert "bm90LWEta2V5" not in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.stem in {"sound", "anchors"}], ids=lambda file: file.stem
)
def test_a_federation_pickles(file: Path) -> None:
    federation = read(file.read_text())
    assert pickle.loads(pickle.dumps(federation)) == federation


def test_relative_paths_are_meant_from_the_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.yaml"
    file.write_text(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: 'file:keys/ewr#connection', ca_file: ewr/ca.pem}\n"
        "  jfk: {connection: 'file:/keys/jfk'}\ntasks:\n  x: {pattern: all-active, topic: x, members: [ewr, jfk]}\n"
    )
    federation = load(file)
    assert str(federation.namespaces["ewr"].connection) == f"file:{tmp_path}/keys/ewr#connection"
    assert federation.namespaces["ewr"].ca_file == f"{tmp_path}/ewr/ca.pem"
    assert str(federation.namespaces["jfk"].connection) == "file:/keys/jfk"
    assert federation.namespaces["ewr"].options() == {
        "connection": f"file:{tmp_path}/keys/ewr#connection",
        "ca_file": f"{tmp_path}/ewr/ca.pem",
    }


def test_the_transport_type_is_an_option_where_it_is_not_the_default(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.yaml"
    file.write_text(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:EWR, transport_type: websockets}\n"
        "  jfk: {host: contoso.servicebus.windows.net, transport_type: amqp}\n"
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}\n"
    )
    namespaces = load(file).namespaces
    assert namespaces["ewr"].options() == {"connection": "env:EWR", "transport_type": "websockets"}
    assert "transport_type" not in namespaces["jfk"].options()


def test_a_file_that_is_not_there_names_the_verb_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isthmus init"):
        load(tmp_path / "isthmus.yaml")


def test_a_file_that_is_no_text_is_a_fault(tmp_path: Path) -> None:
    file = tmp_path / "isthmus.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(file)


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["all-active", "ewr", "env:A", "10m", "off", "a = 1", "flights", "<<", "now", "replicated <> 1", "drop"]
    ),
)
_KEYS = st.sampled_from(
    "isthmus namespaces tasks pattern topic queue members connection host identity ca_file filter mark start ordering "
    "subscriptions subscription duplicate_detection lock_duration rate_limit when_full ewr jfk << x-y action kind source sources target target_topic "
    "target_queue targets otherwise first hub to name".split()
)
_TREES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5), max_leaves=25
)


@given(st.text(alphabet=string.printable, max_size=200))
def test_i1_any_text_is_linted(text: str) -> None:
    assert isinstance(lint(text), list)


@given(_TREES)
def test_i1_any_tree_is_linted(tree: object) -> None:
    import yaml

    assert lint(yaml.safe_dump(tree))


# What makes a task of each pattern whole enough for all of its checks.
_WHOLE = {
    "all-active": {},
    "copy": {"source": "ewr", "topic": "flights", "target": "jfk"},
    "move": {"source": "ewr", "queue": "flights", "target": "jfk"},
    "consolidate": {"sources": ["ewr", "jfk"], "topic": "flights", "target": "jfk"},
    "fan-out": {"hub": "ewr", "topic": "flights", "members": {"jfk": []}},
    "split": {"source": "ewr", "queue": "flights", "targets": [{"to": "jfk", "queue": "a", "filter": "a = 1"}]},
}


@given(st.sampled_from(sorted(_WHOLE)), st.dictionaries(_KEYS, _TREES, max_size=6))
def test_i1_any_task_is_linted(pattern: str, task: dict[str, object]) -> None:
    import yaml

    tasks = yaml.safe_dump({"x": {"pattern": pattern, **_WHOLE[pattern], **task}})
    assert isinstance(lint(SOUND + "".join(f"  {line}\n" for line in tasks.splitlines())), list)


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",
        "&a {isthmus: *a}",
        "isthmus: 1\nnamespaces: &n {ewr: *n}\ntasks: *n",
        "isthmus: 1\nnamespaces: &n {<<: *n}\ntasks: {}",
        "? [a]\n: 1",
        "[" * 5000,
        "{a: " * 5000,
        "- " * 5000,
        "isthmus: !!python/object:os.system x",
        "isthmus: 9999999999999999999999999",
        "isthmus: 1\nnamespaces: {ewr: &e {connection: env:A, <<: [*e, 7, {<<: 8}]}}\ntasks: {}",
        "\x00",
        "%YAML 3.0\n---\na",
    ],
)
def test_i1_hostile_texts_are_linted(text: str) -> None:
    assert lint(text)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ("duplicates: origin, duplicate_detection: 1h", "duplicate_detection compares MessageIds"),
        ("duplicates: allow, duplicate_detection: 1h", "duplicate_detection compares MessageIds"),
        ("duplicates: message-id, duplicate_detection: off", "needs duplicate detection"),
        ("duplicates: none", "duplicates has an unknown value"),
        ("duplicates: origin, duplicate_detection: off", ""),
        ("duplicates: message-id, duplicate_detection: 1h", ""),
    ],
)
def test_duplicates_that_contradict_the_window_are_faults(settings: str, fault: str) -> None:
    faults = lint(f"{SOUND}  x: {{pattern: all-active, topic: x, members: [ewr, jfk], {settings}}}\n")
    assert [each.message for each in faults if fault not in each.message] == []
    assert len(faults) == bool(fault)
