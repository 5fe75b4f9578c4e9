"""`isthmus doctor` and the least rights that `plan` prints, at real namespaces with keys of few rights."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient
from typer.testing import CliRunner

from isthmus.cli.app import create_app
from isthmus.testing.namespace import NamespaceProcess

FILE = """isthmus: 1
namespaces:
  ewr: {{connection: "file:{folder}/ewr", ca_file: "{ewr}"}}
  jfk: {{connection: "file:{folder}/jfk", ca_file: "{jfk}"}}
tasks:
  moves: {{pattern: move, queue: orders, source: ewr, target: jfk}}
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NamespaceProcess]]:
    made = {alias: NamespaceProcess(tmp_path_factory.mktemp(alias)) for alias in ("ewr", "jfk")}
    try:
        for each in made.values():
            each.start()
        yield made
    finally:
        for each in made.values():
            each.stop()


@pytest.fixture
def file(pair: dict[str, NamespaceProcess], tmp_path: Path) -> Path:
    for alias, each in pair.items():
        (tmp_path / alias).write_text(each.connection_string)
    path = tmp_path / "isthmus.yaml"
    path.write_text(FILE.format(folder=tmp_path, **{alias: each.ca_file for alias, each in pair.items()}))
    return path


def doctor(file: Path) -> tuple[int, dict[tuple[str, str], dict[str, Any]], str]:
    answer = CliRunner().invoke(create_app("doctor"), ["doctor", str(file), "--json"])
    found = json.loads(answer.stdout)["findings"]
    return answer.exit_code, {(each["alias"], each["subject"]): each for each in found}, answer.stdout


def verb(name: str, *arguments: str) -> Any:
    return CliRunner().invoke(create_app(name), [name, *arguments])


def test_before_apply_what_is_not_there_is_reported_and_is_no_fault(file: Path) -> None:
    code, found, _ = doctor(file)
    assert code == 0, found
    assert found["ewr", "listen orders"]["text"] == "is not there"
    assert found["ewr", "listen orders"]["hint"] == "isthmus apply makes it"
    assert found["ewr", "clock"]["verdict"] == "ok"
    assert found["ewr", "connect"]["verdict"] == "ok"
    assert "tier" in found["jfk", "manage"]["text"]


def test_rights_that_are_missing_are_named_with_who_grants_them(
    pair: dict[str, NamespaceProcess], file: Path, tmp_path: Path
) -> None:
    assert verb("apply", str(file)).exit_code == 0
    code, found, _ = doctor(file)
    assert code == 0
    assert {each["verdict"] for each in found.values()} == {"ok"}
    assert found["jfk", "send orders"]["text"] == "allowed"
    assert found["jfk", "size orders"]["text"].startswith("0%")

    with ServiceBusAdministrationClient.from_connection_string(
        pair["jfk"].admin_connection_string, connection_verify=str(pair["jfk"].ca_file)
    ) as client:
        queue = client.get_queue("orders")
        listens = AuthorizationRule(
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=["Listen"],
            key_name="reader",
            primary_key="cmVhZGVyLXJlYWRlci1yZWFkZXItcmVhZGVyLXJlYWQ=",
            secondary_key="b3RoZXItb3RoZXItb3RoZXItb3RoZXItb3RoZXItb3Q=",
        )
        queue.authorization_rules = [listens]
        client.update_queue(queue)
    whole = pair["jfk"].connection_string
    parts = dict(each.split("=", 1) for each in whole.split(";") if each)
    (tmp_path / "jfk").write_text(
        ";".join(
            f"{name}={value}"
            for name, value in (
                parts
                | {
                    "SharedAccessKeyName": "reader",
                    "SharedAccessKey": "cmVhZGVyLXJlYWRlci1yZWFkZXItcmVhZGVyLXJlYWQ=",
                }
            ).items()
        )
    )
    code, found, text = doctor(file)
    assert code == 1
    refused = found["jfk", "send orders"]
    assert refused["verdict"] == "fault"
    assert "Azure Service Bus Data Sender" in refused["hint"]
    assert found["jfk", "manage"]["verdict"] == "warning"
    assert "only plan and apply need it" in found["jfk", "manage"]["hint"]
    assert found["ewr", "listen orders"]["verdict"] == "ok"
    assert "cmVhZGVy" not in text


def test_one_that_cannot_be_reached_hides_no_other(file: Path, tmp_path: Path) -> None:
    """I1."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
    (tmp_path / "ewr").write_text(
        f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=aHVudGVyMg==;UseDevelopmentEmulator=true"
    )
    code, found, text = doctor(file)
    assert code == 1
    assert found["ewr", "connect"]["verdict"] == "fault"
    assert str(port) in found["ewr", "connect"]["text"]
    assert found["jfk", "connect"]["verdict"] == "ok"
    assert "aHVudGVyMg" not in text
    (tmp_path / "ewr").unlink()
    code, found, _ = doctor(file)
    assert code == 1
    assert "cannot be read" in found["ewr", "credentials"]["text"]


def test_people_read_a_table(file: Path) -> None:
    answer = verb("doctor", str(file))
    assert answer.exit_code == 0
    assert "clock" in answer.stdout
    planned = verb("plan", str(file))
    assert "least rights" in planned.stdout
    assert "Azure Service Bus Data Owner" in " ".join(planned.stdout.split())


def test_an_entity_that_requires_sessions_may_be_listened_to(pair: dict[str, NamespaceProcess], file: Path) -> None:
    plain = "moves: {pattern: move, queue: orders, "
    file.write_text(
        file.read_text().replace(
            plain, "sessions: {pattern: move, queue: sessions, ordering: session, session_state: copy, "
        )
    )
    assert verb("apply", str(file)).exit_code == 0
    code, found, _ = doctor(file)
    assert code == 0, found
    for alias in ("ewr", "jfk"):  # to set the state of a session at the target it has to be locked
        assert found[alias, "listen sessions"]["text"] == "allowed"
