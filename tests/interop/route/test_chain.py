"""A chain made by `isthmus apply` at a served namespace, which forwards by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from typer.testing import CliRunner

from isthmus.cli.app import create_app
from isthmus.testing.namespace import NamespaceProcess, namespace

CHAIN = """\
isthmus: 1
namespaces:
  ewr: {{connection: env:EWR_CONNECTION, ca_file: {ca_file}}}
tasks:
  flights:
    pattern: chain
    members: [ewr]
    forward:
      acme: flights
      umbrella: flights
      flights/Subscriptions/boards: boards
      flights/Subscriptions/ua: {{to: united, filter: "carrier = 'UA'"}}
    dead_letters: {{boards: parked}}
{settings}"""


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace() as started:
        yield started


def call(verb: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(create_app(verb), [verb, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def received(client: ServiceBusClient, queue: str, count: int) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        messages = receiver.receive_messages(count + 1, max_wait_time=2)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def test_a_chain_moves_messages_and_its_ends_are_suspended_alone(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EWR_CONNECTION", served.connection_string)
    file = tmp_path / "isthmus.yaml"

    def apply(settings: str = "") -> int:
        file.write_text(CHAIN.format(ca_file=served.ca_file, settings=settings))
        code, output = call("apply", "--json")
        assert code == 0, output
        code, plan = call("plan", "--json")
        assert json.loads(plan)["changes"] == [], "one apply is enough"
        return len(json.loads(output)["applied"])

    assert apply() == 8  # a topic, two subscriptions, five queues
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
        with client.get_queue_sender("acme") as acme, client.get_queue_sender("umbrella") as umbrella:
            acme.send_messages(ServiceBusMessage("1", application_properties={"carrier": "UA"}))
            umbrella.send_messages(ServiceBusMessage("2", application_properties={"carrier": "DL"}))
        assert sorted(received(client, "boards", 2)) == ["1", "2"]
        assert received(client, "united", 1) == ["1"]

        assert apply("    suspended: {acme: send, united: receive}\n") == 2
        with pytest.raises(ServiceBusError), client.get_queue_sender("acme") as acme:
            acme.send_messages(ServiceBusMessage("refused"))
        with client.get_queue_sender("umbrella") as umbrella:
            umbrella.send_messages(ServiceBusMessage("3", application_properties={"carrier": "UA"}))
        assert received(client, "boards", 1) == ["3"]
        with pytest.raises(ServiceBusError):
            received(client, "united", 1)

        assert apply("    suspended: {}\n") == 2
        assert received(client, "united", 1) == ["3"]


def test_a_chain_has_nothing_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "isthmus.yaml").write_text(CHAIN.format(ca_file="ca.pem", settings=""))
    result = CliRunner().invoke(create_app("run"), ["run"])
    assert "nothing to run" in str(result.exception)
