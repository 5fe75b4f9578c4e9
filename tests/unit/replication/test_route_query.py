"""A route's options: references only, and what makes copies known."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.replication.route_query import RouteSettings, cause_of, sink_options, source_options
from isthmus.replication.transform import apply_steps, find_step
from isthmus.topology import read
from isthmus.topology.route import routes

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {host: contoso-jfk.servicebus.windows.net, identity: default, ca_file: /etc/ca.pem}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""
SETTINGS = RouteSettings(checkpoints=Path("/state/checkpoints"), lease_seconds=20, steps=("a.b:c",))


@pytest.fixture(autouse=True)
def _no_ca_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_CA_FILE", raising=False)


def test_i1_options_hold_references_only() -> None:
    federation = read(TEXT)
    to_jfk, to_ewr = routes(federation)
    assert source_options(to_jfk, federation, SETTINGS, "/run/control") == {
        "connection": "env:EWR_CONNECTION",
        "entity": "flights/Subscriptions/isthmus.flights.jfk",
        "mode": "raw",
        "ordered": "true",
        "control": "/run/control",
        "lease_seconds": "20",
        "steps": "a.b:c",
    }
    assert source_options(to_ewr, federation, SETTINGS, "")["host"] == "contoso-jfk.servicebus.windows.net"


def test_a_copy_says_which_topic_it_entered_and_where_it_goes() -> None:
    federation = read(TEXT)
    to_jfk, to_ewr = routes(federation)
    assert sink_options(to_jfk, federation, SETTINGS) == {
        "host": "contoso-jfk.servicebus.windows.net",
        "identity": "default",
        "ca_file": "/etc/ca.pem",
        "entity": "flights",
        "origin": "ewr/flights",
        "target": "jfk",
    }
    assert sink_options(to_ewr, federation, SETTINGS)["origin"] == "jfk/flights"


def test_an_authority_of_the_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CA_FILE", "/my/ca.pem")
    federation = read(TEXT)
    to_jfk, _ = routes(federation)
    assert source_options(to_jfk, federation, SETTINGS, "")["ca_file"] == "/my/ca.pem"
    assert sink_options(to_jfk, federation, SETTINGS)["ca_file"] == "/etc/ca.pem"


def test_the_cause_of_a_failure_is_found_in_sparks_report() -> None:
    report = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: TaskEnd
Traceback (most recent call last):
  File "source.py", line 297, in _rows
    raise item.error
isthmus.connectors.servicebus.lease.LeaseError: 'q': the sink failed: jfk: connection refused
 SQLSTATE: 38000
    at org.apache.spark.api.python.BasePythonRunner"""
    assert cause_of(report) == "'q': the sink failed: jfk: connection refused"
    assert cause_of("java.lang.IllegalStateException: boom") == "java.lang.IllegalStateException: boom"
    assert cause_of("") == "the query failed without a word"


def test_steps_are_found_and_applied_in_order() -> None:
    assert find_step("os.path:basename")("/a/b") == "b"  # type: ignore[arg-type]
    assert apply_steps("/a/b", [find_step("os.path:dirname"), find_step("os.path:dirname")]) == "/"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("step", "write package.module:function"),
        ("no_such_module:f", "cannot be imported"),
        ("os.path:no", "no function"),
    ],
)
def test_a_step_that_is_not_there_is_named(name: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        find_step(name)
