"""A route's options: references only, and what makes copies known."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from isthmus.errors import InvalidArgumentError
from isthmus.replication import route_query
from isthmus.replication.reach import namespace_options
from isthmus.replication.route_query import RouteQuery, RouteSettings, cause_of, sink_options, source_options
from isthmus.replication.spark_gone import SparkGoneError
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
        "settle": "sink",
        "ordered": "true",
        "lock_seconds": "30.0",
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
        "mark": to_jfk.options.mark,
        "mark_value": "message-id",
        "duplicates": "auto",
        "refused": "dead-letter",
        "trusts_provenance": "true",
        **{f"origin_{name}": value for name, value in namespace_options(federation.namespaces["ewr"]).items()},
    }
    assert to_jfk.options.mark.startswith("isthmus-")
    assert sink_options(to_ewr, federation, SETTINGS)["origin"] == "jfk/flights"


def test_a_task_says_whether_a_refused_message_blocks() -> None:
    federation = read(TEXT.replace("topic: flights", "topic: flights, refused: block"))
    assert {sink_options(route, federation, SETTINGS)["refused"] for route in routes(federation)} == {"block"}


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


@pytest.mark.parametrize(
    "report",
    [
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting ...",
        "Job aborted due to stage failure\nCaused by: java.io.IOException: Connection reset by peer\n  at sun.nio.ch",
    ],
)
def test_a_killed_worker_is_called_that(report: str) -> None:
    assert cause_of(report).startswith("a Python worker of the route was killed, or crashed")


def test_steps_are_found_and_applied_in_order() -> None:
    assert find_step("os.path:basename")("/a/b") == "b"  # type: ignore[arg-type]
    assert apply_steps("/a/b", [find_step("os.path:dirname"), find_step("os.path:dirname")]) == "/"  # type: ignore[arg-type]


@dataclass
class FakeQuery:
    isActive: bool = True  # noqa: N815 - Spark's name
    status: dict[str, Any] = field(default_factory=lambda: {"isDataAvailable": False, "message": "Waiting"})

    def exception(self) -> Exception | None:
        return None if self.isActive else RuntimeError("isthmus.errors.LeaseError: the sink went away")

    def stop(self) -> None:
        self.isActive = False


class FakeControl:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lease = True

    def busy(self) -> bool:
        return self.lease

    def stop(self, why: str) -> None:
        self.asked.append(why)

    def close(self) -> None:
        self.lease = False


def pair() -> tuple[RouteQuery, FakeQuery, FakeQuery, FakeControl]:
    first, second, control = FakeQuery(), FakeQuery(), FakeControl()
    route = routes(read(TEXT))[0]
    return RouteQuery(route, [first, second], control), first, second, control  # type: ignore[list-item, arg-type]


def test_i4_where_one_query_ends_the_other_is_asked_to_give_back_what_it_has() -> None:
    running, first, _, control = pair()
    assert running.is_active()
    assert control.asked == []
    first.isActive = False
    assert running.is_active(), "the lease of the other is under way"
    assert running.is_active()
    assert control.asked == ["the other query of the route has ended"]
    control.lease = False
    assert not running.is_active()
    assert running.failure() == "the sink went away"


def test_i4_a_query_whose_lease_is_about_to_begin_is_waited_for() -> None:
    running, first, second, control = pair()
    first.isActive = control.lease = False
    second.status["isDataAvailable"] = True
    assert running.is_active()
    second.isActive = False
    assert not running.is_active()


def test_i4_a_lease_that_does_not_end_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_query, "FAREWELL_SECONDS", 0.0)
    running, first, _, control = pair()
    first.isActive = False
    assert not running.is_active()
    assert control.lease


class GoneQuery(FakeQuery):
    @property
    def isActive(self) -> bool:  # type: ignore[override] # noqa: N802 - Spark's name
        raise Py4JNetworkError("Answer from Java side is empty")

    @isActive.setter
    def isActive(self, value: bool) -> None:  # noqa: N802 - Spark's name
        """What a dead process is told does not matter."""


def test_a_route_whose_spark_is_gone_says_so_and_has_nothing_to_drain() -> None:
    control = FakeControl()
    running = RouteQuery(routes(read(TEXT))[0], [GoneQuery()], control)  # type: ignore[list-item, arg-type]
    with pytest.raises(SparkGoneError, match="Java process has ended"):
        running.is_active()
    assert running.drained()


def test_a_route_has_ended_where_both_queries_have() -> None:
    running, first, second, control = pair()
    first.isActive = second.isActive = False
    assert not running.is_active()
    assert running.drained()
    assert control.asked == []


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
