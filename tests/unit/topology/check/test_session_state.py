"""`session_state: copy`: where the state of sessions can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.replication.route_spec import route_spec
from isthmus.topology import lint, read
from isthmus.topology.rights import rights
from isthmus.topology.route import routes

FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {host: jfk.servicebus.windows.net, identity: managed, transport_type: websockets}
  log: {kind: kafka, bootstrap: "127.0.0.1:9092"}
  mq: {kind: rabbitmq, host: 127.0.0.1, tls: false, username: u, password: env:P}
tasks:
  t: {%s, session_state: copy%s}
"""
MOVE = "pattern: move, source: ewr, queue: q, target: jfk"
SESSION = ", ordering: session"


@pytest.mark.parametrize(
    ("task", "target"),
    [
        (MOVE, "q"),
        ("pattern: move, source: ewr, topic: f, subscription: s, target: jfk, target_queue: p", "p"),
        ("pattern: consolidate, sources: [ewr], queue: q, target: jfk", "q"),
    ],
)
def test_a_queue_and_a_subscription_of_an_application_can(task: str, target: str, tmp_path: Path) -> None:
    task = task.replace("sources: [ewr]", "sources: [ewr, lga]")
    text = (FILE % (task, SESSION)).replace("tasks:", "  lga: {connection: env:LGA}\ntasks:")
    federation = read(text)
    route = routes(federation)[0]
    assert route.options.session_state == "copy"
    options = route_spec(route, federation, state_folder=tmp_path).source.options
    assert {name: value for name, value in options.items() if name.startswith("state_")} == {
        "state_host": "jfk.servicebus.windows.net",
        "state_identity": "managed",
        "state_transport_type": "websockets",
        "state_entity": target,
        "state_file": str(tmp_path / "session-states" / f"{route.name}.jsonl"),
    }
    found = {each.alias: each for each in rights(federation)}
    assert found["jfk"].listen == (target,)
    assert target not in found["ewr"].send


def test_it_is_not_copied_unless_the_file_says_so(tmp_path: Path) -> None:
    federation = read((FILE % (MOVE, SESSION)).replace(", session_state: copy", ""))
    (route,) = routes(federation)
    assert not [name for name in route_spec(route, federation, state_folder=tmp_path).source.options if "state" in name]
    assert {each.alias: each for each in rights(federation)}["jfk"].listen == ()


@pytest.mark.parametrize("ordering", ["", ", ordering: ordered", ", ordering: strict", ", ordering: none"])
def test_it_goes_with_sessions(ordering: str) -> None:
    (fault,) = lint(FILE % (MOVE, ordering))
    assert "session_state: copy needs ordering: session" in str(fault)
    assert fault.hint == "write ordering: session, or remove session_state"


def test_a_pattern_without_ordering_is_not_asked_to_write_it() -> None:
    (fault,) = lint(FILE % ("pattern: archive, source: ewr, queue: q, table: lake/q", ""))
    assert "session_state: copy needs ordering: session" in str(fault)
    assert fault.hint == "remove session_state"


@pytest.mark.parametrize(
    ("task", "reason", "hint"),
    [
        ("pattern: queue-to-stream, source: ewr, queue: q, target: log, stream: s", "log is of kind kafka", "remove"),
        ("pattern: move, source: ewr, queue: q, target: mq", "mq is of kind rabbitmq", "remove"),
        (
            "pattern: all-active, queue: q, members: [ewr, jfk]",
            "reads ewr/q/Subscriptions/isthmus.t.jfk",
            "pattern: move",
        ),
        (
            "pattern: copy, source: ewr, topic: f, target: jfk, target_queue: q",
            "which is the task's own",
            "pattern: move",
        ),
        (
            "pattern: move, source: ewr, topic: f, subscription: s, target: jfk",
            "jfk/f is a topic",
            "write target_queue",
        ),
        (
            "pattern: move, source: ewr, queue: q, target: jfk, target_topic: f",
            "jfk/f is a topic",
            "write target_queue",
        ),
    ],
)
def test_it_is_refused_with_the_reason_and_what_to_do(task: str, reason: str, hint: str) -> None:
    (fault,) = lint(FILE % (task, SESSION))
    assert reason in str(fault)
    assert hint in (fault.hint or "")


def test_a_source_without_sessions_is_refused_by_its_ordering() -> None:
    (fault,) = lint(FILE % ("pattern: move, source: mq, queue: q, target: jfk", SESSION))
    assert "mq is of kind rabbitmq, which has no sessions" in str(fault)


def test_executors_elsewhere_have_no_state_folder() -> None:
    spark = "\nspark: {master: 'spark://127.0.0.1:7077', control: {host: 10.0.0.1}}\n"
    faults = [str(each) for each in lint(FILE % (MOVE, SESSION) + spark)]
    assert any("session_state: copy stores the copied states in the state folder" in each for each in faults)
