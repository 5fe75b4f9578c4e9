"""The HTTP server of listeners, on a socket of this machine."""

from __future__ import annotations

import gzip
import socket
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.check.until import until
from harness.server.client_certificate import client_certificate
from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.http.signature import signed
from isthmus.connectors.listen import listener
from isthmus.connectors.listen.door import Door
from isthmus.connectors.listen.listener import enter
from isthmus.connectors.listen.option import ListenOptions

OPTIONS = ListenOptions(
    host="127.0.0.1",
    port=0,
    entity="hook",
    spool=Path("spool"),
    auth="none",
    secret="",
    signature="standard",
    certificate_file="",
    key_file="",
    max_body_bytes=1 << 20,
    spool_bytes=1 << 30,
)
HEAD = b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"


class Store:
    """Has at once what it is given."""

    is_full = False

    def put(self, messages: Sequence[bytes]) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.fixture(name="sender")
def _sender() -> Iterator[socket.socket]:
    entry = enter(OPTIONS, Door(OPTIONS, secret=lambda: "", read=to_messages, store=Store(), wall=lambda: 0.0))
    with socket.create_connection(("127.0.0.1", entry.port), timeout=10.0) as made:
        yield made
    entry.leave()


def test_i3_a_sender_that_asks_before_it_sends_a_body_is_answered(sender: socket.socket) -> None:
    """One that waits for the answer would wait permanently, and so would the listener for the body."""
    sender.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    with sender.makefile("rb") as answers:
        assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert answers.readline() == b"\r\n"
        sender.sendall(b"hello")
        assert answers.readline() == b"HTTP/1.1 200 OK\r\n"


def test_i2_a_sender_that_asks_whether_a_large_body_is_accepted_gets_an_answer(sender: socket.socket) -> None:
    sender.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 5000000\r\n\r\n")
    with sender.makefile("rb") as answers:
        assert answers.readline().startswith(b"HTTP/1.1 413 ")


def test_a_signature_over_a_compressed_body_is_right() -> None:
    """The HTTP library would undo the compression before anybody can look at what was signed."""
    options = replace(OPTIONS, auth="hmac", secret="env:HOOK", signature="sha256")
    entry = enter(options, Door(options, secret=lambda: "s", read=to_messages, store=Store(), wall=lambda: 0.0))
    body = gzip.compress(b"hello")
    proof = signed("sha256", "s", "", body, 0)["x-hub-signature-256"]
    head = (
        HEAD + f"Content-Encoding: gzip\r\nX-Hub-Signature-256: {proof}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    )
    with socket.create_connection(("127.0.0.1", entry.port), timeout=10.0) as sender, sender.makefile("rb") as answers:
        sender.sendall(head + body)
        assert answers.readline().startswith(b"HTTP/1.1 200 ")
    entry.leave()


def test_i4_a_certificate_that_was_replaced_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every sender would be refused from the day on which the first one ends, as long as the process runs."""
    monkeypatch.setattr(listener, "CERTIFICATE_SECONDS", 0.005)
    certificate, key = client_certificate(tmp_path)
    options = replace(OPTIONS, certificate_file=str(certificate), key_file=str(key))
    entry = enter(options, Door(options, secret=lambda: "", read=to_messages, store=Store(), wall=lambda: 0.0))

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", entry.port), timeout=10.0)

    first = shown()
    assert first == certificate.read_text()
    (tmp_path / "next").mkdir()
    made = [each.read_bytes() for each in client_certificate(tmp_path / "next")]
    key.write_bytes(b"half of a k")
    certificate.write_bytes(made[0])
    looks = Looks(monkeypatch)
    until(lambda: looks.count >= 2)
    assert shown() == first
    key.write_bytes(made[1])
    until(lambda: shown() == made[0].decode())
    entry.leave()


def test_i4_files_that_change_while_they_are_looked_at_leave_the_previous_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new certificate stayed with the former key, and every handshake failed until the next look."""
    monkeypatch.setattr(listener, "CERTIFICATE_SECONDS", 0.005)
    certificate, key = client_certificate(tmp_path)
    options = replace(OPTIONS, certificate_file=str(certificate), key_file=str(key))
    (tmp_path / "next").mkdir()
    made, _ = (each.read_bytes() for each in client_certificate(tmp_path / "next"))
    first, load = certificate.read_text(), ssl.SSLContext.load_cert_chain
    entry = enter(options, Door(options, secret=lambda: "", read=to_messages, store=Store(), wall=lambda: 0.0))

    def changed(context: ssl.SSLContext, *files: Any) -> None:
        load(context, *files)
        certificate.write_bytes(made)
        key.write_bytes(b"half of a k")

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", changed)
    looks = Looks(monkeypatch)
    until(lambda: looks.count >= 3)
    assert ssl.get_server_certificate(("127.0.0.1", entry.port), timeout=10.0) == first
    entry.leave()


class Looks:
    """Counts how often the files of a certificate are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        load = listener._Server._load

        def counted(server: Any) -> ssl.SSLContext:
            self.count += 1
            return load(server)

        monkeypatch.setattr(listener._Server, "_load", counted)
