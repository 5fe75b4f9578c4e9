"""isthmus.connectors.eventhubs.blocking and peek: no lost or refused connection is left open."""

from __future__ import annotations

import http.client
import io
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any, Self

import pytest

from isthmus.connectors.eventhubs import blocking
from isthmus.connectors.eventhubs.blocking import BlockingHubs
from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.peek import HubPeek
from isthmus.errors import ConnectionLostError, IsthmusError, UnauthorizedError
from isthmus.transport import Endpoint

OPTIONS = HubOptions(connection="env:NONE")
ENDPOINT = Endpoint("127.0.0.1", 1, tls=False)


class FakeClient:
    """A connection that refuses every right."""

    made: list[FakeClient] = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, endpoint: Endpoint, **settings: Any) -> None:
        self.error: Exception | None = None
        self.is_closed = False
        self.namespace_id = "hub"
        self.made.append(self)

    def open(self, timeout_seconds: float) -> Self:
        return self

    def authorize(self, path: str, timeout_seconds: float) -> None:
        raise UnauthorizedError(f"'{path}': no right")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _clients(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeClient.made.clear()
    monkeypatch.setattr(blocking, "Client", FakeClient)


def test_a_connection_that_was_lost_is_closed_before_the_next_is_made() -> None:
    hubs = BlockingHubs(OPTIONS, ENDPOINT)
    assert hubs.identity() == "hub"
    FakeClient.made[0].error = ConnectionLostError("gone")
    assert hubs.identity() == "hub"
    assert [each.is_closed for each in FakeClient.made] == [True, False]


def test_a_hub_that_cannot_be_looked_at_leaves_no_connection() -> None:
    with pytest.raises(UnauthorizedError):
        HubPeek(OPTIONS, "flights", hubs=BlockingHubs(OPTIONS, ENDPOINT))
    assert [each.is_closed for each in FakeClient.made] == [True]


class Refusing:
    """Answers a request with an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def open(self, request: object, timeout: float) -> Any:
        raise self._error


class Body(io.BytesIO):
    """An answer whose connection is lost within it."""

    def read(self, *_: Any) -> bytes:
        raise TimeoutError("timed out")


def answer(status: int, body: io.BytesIO) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("https://hub/t", status, "no", Message(), body)


@pytest.mark.parametrize(
    ("error", "wanted", "reported"),
    [
        (http.client.BadStatusLine("SSH-2.0"), ConnectionLostError, "SSH-2.0"),
        (answer(500, Body()), ConnectionLostError, "HTTP 500"),
        (answer(403, Body()), UnauthorizedError, "HTTP 403"),
        (
            answer(409, io.BytesIO(b"SubCode=40901. Another conflicting operation is in progress")),
            ConnectionLostError,
            "40901",
        ),
        (urllib.error.URLError(OSError("unreachable")), ConnectionLostError, "unreachable"),
    ],
)
def test_what_is_no_answer_of_the_administration_is_an_error_of_ours(
    error: Exception, wanted: type[IsthmusError], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_: Refusing(error))
    with pytest.raises(wanted, match=reported):
        BlockingHubs(OPTIONS, ENDPOINT).create_hub("flights", 2)


def test_what_exists_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = answer(409, io.BytesIO(b"SubCode=40900. Conflict"))
    monkeypatch.setattr(urllib.request, "build_opener", lambda *_: Refusing(exists))
    BlockingHubs(OPTIONS, ENDPOINT).create_hub("flights", 2)


def test_authorities_that_cannot_be_read_are_an_error_of_ours(tmp_path: Path) -> None:
    unreachable = Endpoint("127.0.0.1", 1, tls=True, ca_file=str(tmp_path / "missing.pem"))
    with pytest.raises(ConnectionLostError, match=r"missing\.pem"):
        BlockingHubs(OPTIONS, unreachable).create_hub("flights", 2)
