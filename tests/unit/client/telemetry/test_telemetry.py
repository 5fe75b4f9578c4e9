"""Metrics and spans of real clients with a namespace in this process; also the examples of the documentation page."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from harness.check.until import until
from isthmus.broker.server import Options, Server
from isthmus.client import DurableSender, RelayRequest, RelayResponse, ReplicatedReceiver, ReplicatedSender
from isthmus.client.aio import RelayListener, RelayRequester
from isthmus.client.telemetry import ClientMetrics, processing, traced

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "observe-the-client-library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
CONFIG = "queues: {orders: {}}\nhybrid_connections: {stock: {}}"
NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"


class Recorded:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> dict[str, object]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    config = tmp_path / "namespace.yaml"
    config.write_text(CONFIG)
    servers = [Server(Options(tmp_path / side, config, port=0, tls_port=0, http_port=0)) for side in ("east", "west")]
    for server in servers:
        await server.start()
    yield tuple(server.describe()["connection_string"] for server in servers)
    for server in servers:
        await server.stop()


def page(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


async def test_a_sender_and_a_receiver(both, recorded, registry, tmp_path):
    def play() -> None:
        metrics = ClientMetrics(registry)
        with traced(ReplicatedSender(*both, "orders"), recorded.provider) as sender:
            metrics.add("orders", sender)
            sender.send_messages(ServiceBusMessage(b"order", message_id="m1", application_properties={"own": 1}))
            assert 'isthmus_client_replicated_sender_taken_total{client="orders",side="west"} 1.0' not in page(registry)
            assert 'isthmus_client_replicated_sender_taken_total{client="orders",side="primary"} 1.0' in page(registry)
            assert 'isthmus_client_replicated_sender_active{client="orders",value="primary"} 1.0' in page(registry)
        with traced(ReplicatedReceiver(*both, "orders", seen=tmp_path / "seen.db"), recorded.provider) as receiver:
            metrics.add("worker", receiver)
            [message] = receiver.receive_messages(max_wait_time=10)
            with processing(message, recorded.provider):
                receiver.complete_message(message)
            assert 'isthmus_client_replicated_receiver_handled_total{client="worker"} 1.0' in page(registry)
            # The message may have come from the secondary before the primary was open.
            wanted = 'isthmus_client_replicated_receiver_namespaces_is_open{client="worker",side="primary"} 1.0'
            until(lambda: wanted in page(registry), lambda: page(registry))

    await asyncio.to_thread(play)
    spans = recorded.spans()
    sent, handled = spans["send_messages orders"], spans["process"]
    assert (sent.kind, sent.attributes["messaging.message.id"]) == (SpanKind.PRODUCER, "m1")
    assert set(sent.attributes["isthmus.taken"]) == {"primary", "secondary"}
    # One trace, from the sender to the settlement.
    assert handled.parent.span_id == sent.context.span_id
    assert spans["complete_message"].parent.span_id == handled.context.span_id
    gc.collect()
    assert page(registry) == []  # both were collected


async def test_a_relay(both, recorded, registry):
    async def answer(request: RelayRequest) -> RelayResponse:
        with processing(request, recorded.provider):
            return RelayResponse(200)

    metrics = ClientMetrics(registry)
    async with (
        RelayListener(both[0], entity="stock", on_request=answer) as listener,
        traced(RelayRequester(both[0], entity="stock"), recorded.provider) as requester,
    ):
        metrics.add("stock", requester)
        metrics.add("stock", listener)
        await listener.wait_listening(timeout=10)
        await requester.request("GET", "/x?a=1", headers={"X-Own": "1"})
        lines = page(registry)
        assert 'isthmus_client_relay_requester_answered_total{client="stock",side="primary"} 1.0' in lines
        assert 'isthmus_client_relay_listener_is_listening{client="stock",side="primary"} 1.0' in lines
    spans = recorded.spans()
    asked, handled = spans["request stock"], spans["GET"]
    assert handled.parent.span_id == asked.context.span_id
    assert (handled.kind, handled.attributes["url.path"]) == (SpanKind.SERVER, "/stock/x")
    assert (asked.attributes["http.response.status_code"], asked.attributes["isthmus.side"]) == (200, "primary")


def test_an_error_passes_and_is_in_the_span_i2(recorded):
    class Failing:
        _entity = "orders"

        def send_messages(self, message: object) -> None:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        traced(Failing(), recorded.provider).send_messages([])
    assert recorded.spans()["send_messages orders"].status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("given", [[{"body": b"1"}, ServiceBusMessage(b"2")], [42], {"body": b"1"}])
def test_what_a_client_takes_is_left_to_the_client_i2(recorded, given):
    """A mapping is accepted as a message, too."""
    taken: list[object] = []

    class Taking:
        _entity = "orders"

        def send_messages(self, message: object) -> None:
            taken.append(message)

    traced(Taking(), recorded.provider).send_messages(given)
    assert taken == [given]


def test_an_outbox_and_a_client_that_fails(recorded, registry, tmp_path):
    class Broken:
        def statistics(self) -> None:
            raise RuntimeError("no")

    metrics, broken = ClientMetrics(registry), Broken()
    metrics.add("broken", broken)
    with traced(DurableSender(NOWHERE, "orders", tmp_path / "outbox"), recorded.provider) as sender:
        metrics.add("orders", sender)
        batch = [ServiceBusMessage(b"a"), ServiceBusMessage(b"b")]
        sender.send_messages(batch)
        assert 'isthmus_client_durable_sender_stored_total{client="orders"} 2.0' in page(registry)
        assert 'isthmus_client_durable_sender_is_empty{client="orders"} 0.0' in page(registry)
        assert not [line for line in page(registry) if "error" in line]
    assert recorded.spans()["send_messages orders"].attributes["messaging.batch.message_count"] == 2
    assert all("traceparent" in message.application_properties for message in batch)


async def test_the_web_application_and_the_worker_of_the_page(both, recorded, monkeypatch, tmp_path):
    monkeypatch.setenv("EAST", both[0])
    monkeypatch.setenv("WEST", both[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorded.provider)
    monkeypatch.setattr("prometheus_client.REGISTRY", registry := CollectorRegistry())
    monkeypatch.setattr("isthmus.client.telemetry.metric.REGISTRY", registry)
    web, worker = {}, {}
    exec(EXAMPLES[0], web)
    exec(EXAMPLES[1], worker)
    app, said = web["app"], []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"one apple", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        said.append(message)

    async with app.router.lifespan_context(app):
        scope = {
            "type": "http", "method": "POST", "path": "/orders", "raw_path": b"/orders", "query_string": b"",
            "headers": [], "app": app, "root_path": "", "scheme": "http", "http_version": "1.1",
        }  # fmt: skip
        await app(scope, receive, send)
    assert (said[0]["status"], said[1]["body"]) == (202, b'{"taken":["primary"]}')
    stopped, handled = threading.Event(), []

    def handle(message: object) -> None:
        handled.append(b"".join(message.body))
        stopped.set()

    await asyncio.wait_for(asyncio.to_thread(worker["work"], handle, stopped), 30)
    assert handled == [b"one apple"]
    assert recorded.spans()["process"].parent.span_id == recorded.spans()["send_messages orders"].context.span_id
