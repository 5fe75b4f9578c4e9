"""`isthmus entity`, `send`, `receive`, `peek` and completion against a served namespace, with each form of its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from isthmus.cli.app import main
from isthmus.testing.namespace import NamespaceProcess, namespace

FILE = """\
isthmus: 1
namespaces:
  ewr: {connection: env:ISTHMUS_TEST_EWR}
  jfk: {connection: env:ISTHMUS_TEST_JFK}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def running() -> Iterator[NamespaceProcess]:
    with namespace(
        config="queues: {orders: {}, sessions: {requires_session: true}}\ntopics: {flights: {subscriptions: {board: {}}}}"
    ) as ns:
        yield ns


@pytest.fixture
def run(
    running: NamespaceProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISTHMUS_CONNECTION", running.connection_string)
    monkeypatch.setenv("ISTHMUS_TEST_EWR", running.connection_string)
    (tmp_path / "isthmus.yaml").write_text(FILE)

    def call(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in arguments])
        output, errors = capsys.readouterr()
        assert (ended.value.code or 0) == code, (output, errors)
        assert "SharedAccessKey" not in output + errors
        return output + errors

    return call


def test_each_way_to_name_a_namespace_leads_there_without_a_certificate(
    running: NamespaceProcess, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (["--connection", "env:ISTHMUS_TEST_EWR"], ["--namespace", "ewr"], ["--data", str(running.data)], []):
        shown = run("entity", "list", *where)
        assert "orders" in shown
        assert "flights/Subscriptions/board" in shown
    monkeypatch.delenv("ISTHMUS_CONNECTION")
    assert "no namespace is named" in run("entity", "list", code=2)


def test_entities_are_created_shown_updated_and_deleted(run: Run) -> None:
    run("entity", "create", "made", "lock_duration=30s", "max_delivery_count=3", "status=SendDisabled")
    shown = json.loads(run("entity", "show", "made", "--json"))
    assert shown["kind"] == "queue"
    assert (shown["settings"]["lock_duration"], shown["settings"]["status"]) == ("30s", "SendDisabled")
    assert "exists already" in run("entity", "create", "made", code=1)
    assert "exists already" in run("entity", "create", "made", "--topic", code=1)
    run("entity", "update", "made", "status=Active", "max_delivery_count=7")
    shown = json.loads(run("entity", "show", "made", "--json"))
    assert (shown["settings"]["max_delivery_count"], shown["settings"]["status"]) == ("7", "Active")
    assert shown["settings"]["lock_duration"] == "30s"
    run("send", "made", "x")
    assert "would be deleted, with 1 messages" in run("entity", "delete", "made")
    assert "deleted, with 1 messages" in run("entity", "delete", "made", "--yes")
    assert "could not be found" in run("entity", "show", "made", code=1)


def test_subscriptions_and_their_rules(run: Run) -> None:
    path = "flights/Subscriptions/late"
    run("entity", "create", path, "--filter", "delay > 15", "--action", "SET late = true")
    shown = json.loads(run("entity", "show", path, "--json"))
    assert shown["rules"] == [{"name": "$Default", "filter": "delay > 15", "action": "SET late = true"}]
    run("entity", "create", f"{path}/Rules/ua", "--filter", "carrier = 'UA'")
    run("entity", "update", f"{path}/Rules/ua", "--filter", "carrier = 'DL'")
    assert "carrier = 'DL'" in run("entity", "show", f"{path}/Rules/ua")
    assert "1:" in run("entity", "create", f"{path}/Rules/bad", "--filter", "carrier = ", code=2)
    run("entity", "delete", f"{path}/Rules/ua", "--yes")
    run("entity", "delete", path, "--yes")
    assert "could not be found" in run("entity", "create", "none/Subscriptions/x", code=1)


def test_what_is_sent_is_received_with_its_properties_and_removed(running: NamespaceProcess, run: Run) -> None:
    reported = run(
        "send",
        "orders",
        "first\nline",
        "--message-id",
        "m1",
        "--subject",
        "s",
        "--property",
        "n=7",
        "--property",
        "b=true",
        "--time-to-live",
        "1h",
    )
    assert reported == "orders: sent 1 message, MessageId m1\n"
    client = ServiceBusClient.from_connection_string(running.connection_string)
    with client, client.get_queue_receiver("orders") as receiver:
        (message,) = receiver.peek_messages(1)
        assert message.application_properties == {b"n": 7, b"b": True}
        assert (str(message), message.time_to_live.total_seconds()) == ("first\nline", 3600)
    (seen,) = [json.loads(line) for line in run("receive", "orders", "--json").splitlines()]
    assert (seen["message_id"], seen["body"], seen["subject"]) == ("m1", "first\nline", "s")
    assert "no message arrived within 0.5 s" in run("receive", "orders", "--wait", "0.5", code=1)


def test_many_are_received_in_order_and_no_more_than_asked_for(run: Run) -> None:
    run("send", "orders", "x", "--count", "130")
    first = [
        json.loads(line)["sequence_number"] for line in run("receive", "orders", "--max", 60, "--json").splitlines()
    ]
    rest = [
        json.loads(line)["sequence_number"]
        for line in run("receive", "orders", "--max", 0, "--wait", "0.5", "--json").splitlines()
    ]
    assert (len(first), len(rest)) == (60, 70)
    assert first + rest == sorted(first + rest)


def test_a_misspelt_entity_is_named_with_the_nearest_one(run: Run) -> None:
    for arguments in (("entity", "show", "ordrs"), ("peek", "ordrs"), ("send", "ordrs", "x"), ("receive", "ordrs")):
        assert "'ordrs' could not be found.; did you mean orders?" in run(*arguments, code=1)


def test_sessions(run: Run) -> None:
    run("send", "sessions", "x", "--session-id", "a")
    assert "requires sessions" in run("receive", "sessions", code=1)
    assert "SessionId a" in run("receive", "sessions", "--next-session")


def test_a_message_whose_printing_fails_stays(running: NamespaceProcess, run: Run) -> None:
    run("send", "orders", "kept")
    process = subprocess.Popen(
        [sys.executable, "-m", "isthmus", "receive", "orders"],
        stdout=subprocess.PIPE, env={**os.environ, "ISTHMUS_CONNECTION": running.connection_string},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()  # nothing is read
    assert process.wait(60) == 1
    client = ServiceBusClient.from_connection_string(running.connection_string)
    with client, client.get_queue_receiver("orders") as receiver:
        assert [str(each) for each in receiver.peek_messages(5)] == ["kept"]
    assert "removed 1" in run("purge", "orders", "--yes")  # its lock was given back


def test_peek_of_a_topic_names_its_subscriptions(running: NamespaceProcess, run: Run) -> None:
    client = ServiceBusClient.from_connection_string(running.connection_string)
    with client, client.get_topic_sender("flights") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    assert "its messages are in its subscriptions: flights/Subscriptions/board" in run("peek", "flights")


def test_a_shell_is_offered_entities_and_aliases(running: NamespaceProcess, run: Run) -> None:
    def offered(*arguments: str) -> list[str]:
        environment = {
            **os.environ,
            "_ISTHMUS_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("isthmus", *arguments)),
            "COMP_CWORD": str(len(arguments)),
        }
        done = subprocess.run(
            [sys.executable, "-c", "from isthmus.cli.app import main; main()"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    assert "flights/Subscriptions/board" in offered("peek", "fl")
    assert offered("entity", "list", "--namespace", "e") == ["ewr"]
    assert "resubmit" in offered("res")
