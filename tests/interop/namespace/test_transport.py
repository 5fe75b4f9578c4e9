"""isthmus's own client over TLS and WebSocket, and its tokens, against a real namespace."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.spark.sink import DISPOSITIONS
from isthmus.connectors.servicebus.spark.source_settler import SourceSettler
from isthmus.errors import ConnectionLostError, IsthmusError, UnauthorizedError
from isthmus.operations.message import read, sequence_of
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.peer import Peer
from isthmus.transport import (
    Client,
    Endpoint,
    Management,
    Receiver,
    Sender,
    SharedKeyCredential,
    SignatureCredential,
    Token,
)

LIFETIME_SECONDS = 6


def endpoint(
    served: NamespaceProcess, *, tls: bool = True, websocket: bool = False, credential: Any = None
) -> Endpoint:
    parsed = ConnectionString.parse(served.connection_string)
    known = endpoint_of_string(parsed, str(served.ca_file), websocket=websocket)
    port = served.ports["tls" if tls else "amqp"]
    return replace(known, port=port, tls=tls, credential=credential or known.credential)


def shared_key(served: NamespaceProcess, lifetime_seconds: float = 3600, key: str = "") -> SharedKeyCredential:
    parsed = ConnectionString.parse(served.connection_string)
    assert parsed.key is not None
    return SharedKeyCredential(parsed.key_name, key or parsed.key.reveal(), lifetime_seconds)


def messages(count: int, size: int = 1000) -> list[bytes]:
    return [section.encode_message(bytes(size), properties={"message_id": f"m{n}"}) for n in range(count)]


def round_trip(client: Client, path: str, count: int, size: int = 1000) -> None:
    Sender(client, path).wait_ready().send_all(messages(count, size), batch=10)
    receiver = Receiver(client, path).wait_attached()
    receiver.grant(count)
    got: list[bytes] = []

    def arrived() -> bool:
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
            got.extend(run.payloads)
        return len(got) >= count

    client.wait_until(arrived, 20, "messages")
    found = [section.decode_properties(each, section.locate(each).properties)["message_id"] for each in got]
    assert found == [f"m{n}" for n in range(count)]


def outlives(client: Client, sender: Sender, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sender.send_all(messages(1))
        client.wait(0.2)


@contextmanager
def closing(client: Client) -> Iterator[Client]:
    try:
        yield client
    finally:
        client.close(2.0)
        wait_for(lambda: not any(each.name.startswith("websocket-") for each in threading.enumerate()))


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


# ---- TLS


def test_messages_travel_over_tls(served: NamespaceProcess) -> None:
    with closing(open_client(endpoint(served), "tls", "test")) as client:
        round_trip(client, "tls", 200)


@pytest.mark.parametrize("websocket", [False, True], ids=["socket", "websocket"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_large_messages_cross_every_transport_beside_small_ones(
    served: NamespaceProcess, tls: bool, websocket: bool
) -> None:
    body = random.Random(tls).randbytes(1 << 20) * 12
    with (
        closing(open_client(endpoint(served, tls=False), "tls", "test")) as other,
        closing(open_client(endpoint(served, tls=tls, websocket=websocket), "huge", "test")) as client,
    ):
        sender = Sender(client, "huge").wait_ready()
        receiver = Receiver(client, "huge").wait_attached()
        receiver.grant(2)
        sender.send([section.encode_message(body), *messages(1)])
        client.flush()
        round_trip(other, "tls", 20)
        got: list[bytes] = []

        def arrived() -> bool:
            for run in receiver.take():
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
                got.extend(run.payloads)
            return len(got) == 2 and not sender.outstanding

        client.wait_until(arrived, 60, "both messages")
        assert got[0].endswith(body)
        assert len(got[1]) < 2000


@pytest.mark.parametrize("websocket", [False, True])
def test_a_certificate_of_an_unknown_authority_is_refused(served: NamespaceProcess, websocket: bool) -> None:
    unknown = replace(endpoint(served, websocket=websocket), ca_file="")
    with pytest.raises(ConnectionLostError, match=r"(?i)certificate"):
        Client(unknown).open(10)


@pytest.mark.parametrize(("transport_type", "queue"), [("amqp", "settled"), ("websockets", "modes")])
def test_rows_are_settled_at_a_source_of_a_private_authority(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch, transport_type: str, queue: str
) -> None:
    """The sink asks the source itself, over TLS as the reader does."""
    secret = ";".join(part for part in served.connection_string.split(";") if part.startswith("SharedAccessKey"))
    monkeypatch.setenv("SOURCE", f"Endpoint=sb://127.0.0.1:{served.ports['tls']}/;{secret}")
    options = SinkOptions(
        connection="env:SOURCE", entity="target", source_connection="env:SOURCE", source_entity=queue,
        source_ca_file=str(served.ca_file), source_transport_type=transport_type,
    )  # fmt: skip
    with closing(open_client(endpoint(served, tls=False), queue, "test")) as client:
        client.authorize(f"{queue}/$DeadLetterQueue")
        Sender(client, queue).wait_ready().send_all(messages(4), batch=10)
        receiver = Receiver(client, queue).wait_attached()
        receiver.grant(4)
        taken: list[tuple[bytes, bytes]] = []

        def arrived() -> bool:
            taken.extend(pair for run in receiver.take() for pair in zip(run.tags, run.payloads, strict=True))
            return len(taken) >= 4

        client.wait_until(arrived, 20, "messages")
        receiver.close()
        settler = SourceSettler(options)
        sequences = [sequence_of(payload) for _, payload in taken]
        settler.know(sequences, [bytes(tag) for tag, _ in taken])
        for sequence, disposition in zip(sequences[:3], DISPOSITIONS, strict=True):
            settler.settle(sequence, Disposition(disposition, "bad", "row 7"))
        settler.close()
        entity, dead = Management(client, queue), Management(client, f"{queue}/$DeadLetterQueue")
        states = [(read(each).sequence, read(each).state) for each in entity.peek(sequences[0], 10)]
        assert states == [(sequences[2], "deferred"), (sequences[3], "active")]
        [buried] = [read(each) for each in dead.peek(0, 10) if read(each).sequence >= sequences[0]]
        assert (buried.reason, buried.description) == ("bad", "row 7")


def test_a_certificate_for_another_host_is_refused(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda at, *more: real(("127.0.0.1", at[1]), *more))
    with pytest.raises(ConnectionLostError, match=r"(?i)certificate|hostname"):
        Client(replace(endpoint(served), host="other.example")).open(10)


def test_a_port_without_tls_is_reported_as_such(served: NamespaceProcess) -> None:
    with Peer("q") as peer, pytest.raises(IsthmusError, match=r"127\.0\.0\.1"):
        Client(replace(endpoint(served), host="127.0.0.1", port=peer.port)).open(2)


# ---- tokens


@pytest.mark.parametrize("websocket", [False, True])
def test_a_wrong_key_is_refused_and_not_reported(served: NamespaceProcess, websocket: bool) -> None:
    wrong = endpoint(served, websocket=websocket, credential=shared_key(served, key="cGxhbnRlZA=="))
    with closing(Client(wrong).open(10)) as client:
        with pytest.raises(UnauthorizedError, match="'tls'") as raised:
            client.authorize("tls")
        assert "cGxhbnRlZA" not in str(raised.value)
        with pytest.raises(UnauthorizedError):
            Sender(client, "tls").wait_ready(10)


def test_a_token_that_has_expired_is_refused(served: NamespaceProcess) -> None:
    made = shared_key(served, lifetime_seconds=-60).token(endpoint(served).audience("tls"), time.time())
    expired = endpoint(served, credential=SignatureCredential(made.text))
    with closing(Client(expired).open(10)) as client, pytest.raises(UnauthorizedError, match=r"(?i)expired"):
        client.authorize("tls")


class Counting:
    """Makes short-lived tokens, and bad ones from the given one on."""

    def __init__(self, good: SharedKeyCredential, bad_from: int = 1 << 30) -> None:
        self.good = good
        self.bad_from = bad_from
        self.made = 0

    def token(self, audience: str, now: float) -> Token:
        self.made += 1
        token = self.good.token(audience, now)
        return token if self.made < self.bad_from else token._replace(text=token.text.replace("sig=", "sig=A"))


def test_a_long_connection_renews_its_tokens_before_they_expire(served: NamespaceProcess) -> None:
    credential = Counting(shared_key(served, LIFETIME_SECONDS))
    with closing(open_client(endpoint(served, credential=credential), "tls", "test")) as client:
        sender = Sender(client, "tls").wait_ready()
        outlives(client, sender, 3 * LIFETIME_SECONDS)
        assert credential.made >= 4
        assert client.error is None


def test_links_end_when_a_token_that_cannot_be_renewed_expires(served: NamespaceProcess) -> None:
    made = shared_key(served, LIFETIME_SECONDS).token(endpoint(served).audience("tls"), time.time())
    fixed = SignatureCredential(made.text)
    with closing(open_client(endpoint(served, credential=fixed), "tls", "test")) as client:
        sender = Sender(client, "tls").wait_ready()
        with pytest.raises(IsthmusError) as raised:
            outlives(client, sender, 40)
        assert isinstance(raised.value.__cause__ or raised.value, UnauthorizedError | ConnectionLostError)


def test_a_renewal_that_is_refused_ends_the_connection_with_the_reason(served: NamespaceProcess) -> None:
    credential = Counting(shared_key(served, LIFETIME_SECONDS), bad_from=2)
    with closing(open_client(endpoint(served, credential=credential), "tls", "test")) as client:
        with pytest.raises(UnauthorizedError):
            client.wait_until(lambda: False, 3 * LIFETIME_SECONDS, "a refusal")
        assert isinstance(client.error, UnauthorizedError)


# ---- WebSocket


@pytest.mark.parametrize("tls", [False, True])
def test_messages_travel_over_websocket(served: NamespaceProcess, tls: bool) -> None:
    with closing(open_client(endpoint(served, tls=tls, websocket=True), "websocket", "test")) as client:
        round_trip(client, "websocket", 300)
        round_trip(client, "websocket", 20, 100_000)


def test_a_server_that_speaks_no_websocket_is_reported_as_such(served: NamespaceProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(ConnectionLostError, match="answered 403"):
            Client(replace(endpoint(served, tls=False, websocket=True), port=port)).open(5)
        thread.join(5)


def test_a_namespace_that_is_killed_ends_the_websocket(tmp_path: Path) -> None:
    with (
        namespace(tmp_path / "data", config="queues: {q: {}}") as running,
        closing(open_client(endpoint(running, websocket=True), "q", "test")) as client,
    ):
        Sender(client, "q").wait_ready().send_all(messages(5))
        running.kill()
        with pytest.raises(ConnectionLostError):
            client.wait_until(lambda: False, 10, "the end")


def test_a_websocket_goes_through_the_proxy_of_the_environment_and_checks_the_name_behind_it(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy leads every name to the namespace, whose certificate is for another: the name asked for is what counts."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def carry(one: socket.socket, other: socket.socket) -> None:
            with suppress(OSError):
                while data := one.recv(65536):
                    other.sendall(data)
                other.shutdown(socket.SHUT_WR)

        def proxy() -> None:
            accepted, _ = listener.accept()
            with accepted, socket.create_connection(("127.0.0.1", served.ports["tls"])) as onward:
                asked.append(accepted.recv(4096).split(b"\r\n")[0])
                accepted.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=carry, args=(onward, accepted))
                back.start()
                carry(accepted, onward)
                back.join(5)

        thread = threading.Thread(target=proxy)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(ConnectionLostError, match=r"(?i)certificate|hostname"):
            Client(replace(endpoint(served, websocket=True), host="ns.example", port=443)).open(10)
        thread.join(10)
    assert asked == [b"CONNECT ns.example:443 HTTP/1.1"]
