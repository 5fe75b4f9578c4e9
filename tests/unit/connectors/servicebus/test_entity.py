"""Entities of a namespace whose answers are lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from azure.core.pipeline.transport import HttpTransport

from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.servicebus.administration.administration import ServiceBusAdministration
from isthmus.connectors.servicebus.administration.client import OpenClient, client_of_string
from isthmus.connectors.servicebus.administration.repetition import LONGEST_WAIT_SECONDS
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.entity import Entities, EntityPath
from isthmus.errors import EntityExistsError, EntityNotFoundError
from isthmus.topology.planning.change import Change
from isthmus.topology.state import QueueState

ENTRY = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><title>q</title><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)


class Namespace(ThreadingHTTPServer):
    """Has queues; so many of its answers to changes are lost, and so many changes refused for now before that."""

    lost = 1
    busy = 0
    moved_to = ""
    queues: set[str]

    def handle_error(self, *_: object) -> None:
        """A connection was closed."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Namespace

    def do_GET(self) -> None:
        if self.server.moved_to:
            self.send_response(307)
            self.send_header("Location", self.server.moved_to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._answer(200 if self._name in self.server.queues else 404)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.busy:
            self.server.busy -= 1
            self._answer(429)
            return
        is_new = self._name not in self.server.queues
        self.server.queues.add(self._name)
        self._answer_change(201 if is_new else 409)

    def do_DELETE(self) -> None:
        was_there = self._name in self.server.queues
        self.server.queues.discard(self._name)
        self._answer_change(200 if was_there else 404)

    @property
    def _name(self) -> str:
        return self.path.strip("/").partition("?")[0]

    def _answer_change(self, status: int) -> None:
        if self.server.lost:
            self.server.lost -= 1
            self.close_connection = True
            return
        self._answer(status)

    def _answer(self, status: int) -> None:
        body = ENTRY if status < 300 else b"<Error><Code>0</Code><Detail>no</Detail></Error>"
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "3600")
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(name="namespace")
def _namespace() -> Iterator[Namespace]:
    with Namespace(("127.0.0.1", 0), Handler) as made:
        made.queues = set()
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def opened(namespace: Namespace) -> OpenClient:
    text = f"Endpoint=sb://127.0.0.1:{namespace.server_address[1]};SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    return client_of_string(ConnectionString.parse(f"{text};UseDevelopmentEmulator=true"))


def test_what_was_made_though_the_answer_was_lost_is_not_reported_as_somebody_elses(namespace: Namespace) -> None:
    """The client repeats the request by itself, and is answered that the entity exists."""
    with Entities(opened(namespace)) as entities:
        entities.create(EntityPath("one"), "queue", {})
        with pytest.raises(EntityExistsError):
            entities.create(EntityPath("one"), "queue", {})
    namespace.lost = 1
    administration = ServiceBusAdministration(opened(namespace))
    administration.make(Change(alias="ewr", action="create", kind="queue", topic="two", after=QueueState(name="two")))
    administration.close()
    assert namespace.queues == {"one", "two"}


def test_what_somebody_else_has_made_is_reported_though_the_namespace_was_busy_first(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats the request as well, but it has done nothing before. It does not wait for an hour, though it is asked to."""
    slept: list[float] = []
    monkeypatch.setattr(HttpTransport, "sleep", lambda _, seconds: slept.append(seconds))
    namespace.queues.add("one")
    namespace.lost, namespace.busy = 0, 1
    with Entities(opened(namespace)) as entities, pytest.raises(EntityExistsError):
        entities.create(EntityPath("one"), "queue", {})
    assert slept == [LONGEST_WAIT_SECONDS]


def test_what_was_deleted_though_the_answer_was_lost_is_not_reported_as_missing(namespace: Namespace) -> None:
    namespace.queues.add("one")
    with Entities(opened(namespace)) as entities:
        entities.delete(EntityPath("one"))
        with pytest.raises(EntityNotFoundError):
            entities.delete(EntityPath("one"))


def test_a_redirect_is_reported_and_not_followed(namespace: Namespace) -> None:
    """The client would show the address that it names a token for the whole namespace."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        namespace.moved_to = f"http://127.0.0.1:{other.getsockname()[1]}/one"
        with pytest.raises(AdministrationError, match="307"):
            ServiceBusAdministration(opened(namespace)).size("one")
        with pytest.raises(BlockingIOError):
            other.accept()


def test_no_proxy_is_asked_for_this_machine(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has TLS: the connection comes to the namespace."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    text = f"Endpoint=sb://127.0.0.1:{namespace.server_address[1]};SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    with pytest.raises(Exception, match=r"WRONG_VERSION|wrong version|record layer"):
        client_of_string(ConnectionString.parse(text), retries=0).client.get_queue("one")


def test_what_was_made_although_its_status_was_refused_is_reported(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the operator makes it again, and gets the error that it exists."""

    def refused(*_: object) -> None:
        raise AdministrationError("127.0.0.1", "refused with 400")

    namespace.lost = 0
    with Entities(opened(namespace)) as entities:
        monkeypatch.setattr(entities, "update", refused)
        with pytest.raises(AdministrationError) as caught:
            entities.create(EntityPath("one"), "queue", {"status": "Disabled"})
    assert caught.value.__notes__ == ["one was created, and is Active"]
    assert namespace.queues == {"one"}
