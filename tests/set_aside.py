"""Messages that are set aside at a namespace, and `isthmus redrive`, for tests."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from isthmus.amqp import Error, section
from isthmus.amqp.performative import Rejected
from isthmus.amqp.types import Symbol
from isthmus.cli.app import main
from isthmus.operations.message import Seen, read
from isthmus.operations.peek import messages
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Receiver, Sender

__all__ = ["numbers", "send", "set_aside", "contents", "reported", "wait_count"]


def reported(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON of `isthmus redrive`."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["redrive", *arguments, "--json"])
    output, errors = capsys.readouterr()
    assert (ended.value.code or 0) == code, (output, errors)
    assert "SharedAccessKey" not in output
    found: dict[str, Any] = json.loads(output)
    return found


def send(
    running: FederationProcess,
    alias: str,
    entity: str,
    numbers: range,
    *,
    body: bytes = b"body",
    ttl_ms: int | None = None,
    session_id: str | None = None,
) -> None:
    session = {} if session_id is None else {"group_id": session_id}
    sent = [
        section.encode_message(
            body,
            header=section.Header(ttl_ms=ttl_ms),
            properties={"message_id": f"{entity}-{number}", **session},
            application_properties={"number": number},
        )
        for number in numbers
    ]
    with NamespaceClients(running.federation) as clients, clients.open(Endpoint(alias, entity)) as client:
        Sender(client, entity).wait_ready().send_all(sent, batch=100)


def set_aside(running: FederationProcess, alias: str, entity: str, count: int, reason: str) -> None:
    dead = Rejected(Error(Symbol("com.microsoft:dead-letter"), reason, {"DeadLetterReason": reason}))
    with NamespaceClients(running.federation) as clients, clients.open(Endpoint(alias, entity)) as client:
        receiver = Receiver(client, entity, confirms=True).wait_attached()
        receiver.grant(count)
        client.wait_until(lambda: receiver.received >= count, 60, "messages")
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1, dead)
        answered = 0

        def answers() -> bool:
            nonlocal answered
            while receiver.outcomes:
                first, last, _ = receiver.outcomes.popleft()
                answered += last - first + 1
            return answered >= count

        client.wait_until(answers, 60, "outcomes")


def contents(running: FederationProcess, alias: str, entity: str) -> list[Seen]:
    with NamespaceClients(running.federation) as clients, clients.open(Endpoint(alias, entity)) as client:
        return list(map(read, messages(client, entity)))


def numbers(found: list[Seen]) -> list[int]:
    return [each.properties["number"] for each in found]


def wait_count(running: FederationProcess, alias: str, entity: str, count: int) -> list[Seen]:
    limit = time.monotonic() + 60
    while len(found := contents(running, alias, entity)) != count:
        assert time.monotonic() < limit, f"{len(found)} of {count} stand in {entity}"
        time.sleep(0.1)
    return found
