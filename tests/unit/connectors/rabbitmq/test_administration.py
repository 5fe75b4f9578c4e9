"""Calls of RabbitMQ's management plugin, at a server that simulates it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from isthmus.connectors.rabbitmq.administration import RabbitAdministration
from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.topology.state import PlainState


class Plugin(BaseHTTPRequestHandler):
    """Knows a queue, and an exchange to which it is bound."""

    bindings: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        found: object = {"messages": 7, "type": "topic", "rabbitmq_version": "4.1.0"}
        if self.path.endswith("/bindings"):
            found = self.bindings
        elif self.path.endswith("/bindings/source"):
            exchange = self.path.split("/")[-3]
            found = [each for each in self.bindings if each["source"] == exchange]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[RabbitAdministration]:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("PASSWORD", "guest")
    with ThreadingHTTPServer(("127.0.0.1", 0), Plugin) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        options = {"host": "127.0.0.1", "username": "guest", "password": "env:PASSWORD"}
        management = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield RabbitAdministration(read_broker({**options, "management": management}))
        finally:
            server.shutdown()
            thread.join()


def test_no_proxy_is_asked_for_this_machine(asked: RabbitAdministration) -> None:
    """It would be sent the password."""
    assert asked.messages("orders") == 7


def test_a_queue_that_a_former_exchange_of_its_task_fills_is_reported(
    asked: RabbitAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages would be moved as those of the exchange that the task names now."""
    queue = "isthmus.gates.jfk"
    own = [{"source": each, "destination": queue, "destination_type": "queue"} for each in ("", "gates")]
    wanted = PlainState(name="gates", is_topic=True, subscriptions=(queue,))
    monkeypatch.setattr(Plugin, "bindings", own)
    assert asked.observe("ewr", [wanted]).plain == (replace(wanted, remarks=()),)
    assert asked.observe("ewr", [wanted]).plain[0].remarks == ()
    former = {"source": "flights", "destination": queue, "destination_type": "queue"}
    monkeypatch.setattr(Plugin, "bindings", [own[0], former])
    (found,) = asked.observe("ewr", [wanted]).plain
    assert found.subscriptions == ()
    (remark,) = found.remarks
    assert remark.startswith(
        f"queue {queue} is bound to exchange flights too: messages published there are moved as if"
    )


def test_a_binding_through_another_exchange_may_be_one(
    asked: RabbitAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = "isthmus.gates.jfk"
    other = {"source": "gates", "destination": "other", "destination_type": "queue"}
    for bindings, is_bound in (
        ([], False),
        ([other], False),
        ([other, {**other, "destination": queue}], True),
        ([{**other, "destination_type": "exchange"}], None),
        ([{**other, "destination": queue, "destination_type": "exchange"}], None),
    ):
        monkeypatch.setattr(Plugin, "bindings", bindings)
        assert asked.is_bound("gates", queue) is is_bound


def test_without_management_no_binding_is_known() -> None:
    options = read_broker({"host": "127.0.0.1", "username": "guest", "password": "env:PASSWORD"})
    assert RabbitAdministration(options).is_bound("gates", "isthmus.gates.jfk") is None


def test_a_queue_of_a_renamed_task_that_stays_bound_is_reported(
    asked: RabbitAdministration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing empties it any more."""
    wanted = PlainState(name="gates", is_topic=True, subscriptions=("isthmus.gates.jfk",))
    names = ("isthmus.gates.jfk", "isthmus.old.jfk", "boards")
    bound = [{"source": "gates", "destination": each, "destination_type": "queue"} for each in names]
    monkeypatch.setattr(Plugin, "bindings", bound)
    (found,) = asked.observe("ewr", [wanted]).plain
    (remark,) = found.remarks
    assert remark.startswith("queue isthmus.old.jfk is bound to exchange gates, and no task of this file reads it")
    assert "it has 7 messages" in remark
