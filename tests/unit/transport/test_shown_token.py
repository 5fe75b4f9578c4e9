"""isthmus.transport.shown_token."""

import time
from types import SimpleNamespace

import pytest

from isthmus.errors import (
    ConnectionLostError,
)
from isthmus.testing.peer import Peer
from isthmus.transport import (
    Client,
    Endpoint,
    IdentityCredential,
    SharedKeyCredential,
    SignatureCredential,
    Token,
    shown_token,
)
from isthmus.transport import client as client_module


class Ahead:
    """The module `time` with a wall clock that the test moves forward."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.monotonic = time.monotonic

    def time(self) -> float:
        return time.time() + self.seconds


@pytest.fixture(name="ahead")
def _ahead(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    made = Ahead()
    monkeypatch.setattr(shown_token, "time", made)
    monkeypatch.setattr(client_module, "time", made)
    return made


def test_tokens_are_shown_and_renewed_before_they_expire_i1(ahead: Ahead) -> None:
    class Hourly:
        def __init__(self) -> None:
            self.made = 0

        def token(self, audience: str, now: float) -> Token:
            self.made += 1
            return Token(f"token {self.made} for {audience}", "jwt", now + 3600)

    with Peer("q") as peer:
        credential = Hourly()
        endpoint = Endpoint("127.0.0.1", peer.port, tls=False, authority="name:1", credential=credential)
        with Client(endpoint).open() as client:
            client.authorize("q")
            client.wait(0.1)
            assert credential.made == 1
            ahead.seconds = 3600 * 0.9
            client.wait_until(lambda: credential.made == 2, 5, "renewal")
            assert client.error is None
        shown = [body for node, operation, body in peer.requests if (node, operation) == ("$cbs", "put-token")]
        assert shown[0] == "token 1 for sb://name:1/q"


def test_a_token_service_that_fails_for_a_moment_costs_no_connection_i2(ahead: Ahead) -> None:
    class Identity:
        def __init__(self) -> None:
            self.asked = 0

        def get_token(self, scope: str) -> SimpleNamespace:
            self.asked += 1
            if self.asked == 2:
                raise ValueError("the token service is away")
            return SimpleNamespace(token=f"token {self.asked}", expires_on=ahead.time() + 3600)

    with Peer("q") as peer:
        identity = Identity()
        endpoint = Endpoint("127.0.0.1", peer.port, tls=False, credential=IdentityCredential(identity))
        with Client(endpoint).open() as client:
            client.authorize("q")
            ahead.seconds = 3600 * 0.95
            client.wait_until(lambda: identity.asked == 2, 5, "renewal")
            ahead.seconds = 3600 * 0.96  # a tenth of what was left has passed
            client.wait_until(lambda: identity.asked == 3, 5, "renewal")
            assert client.error is None
            peer.wait_for(lambda: [body for _, _, body in peer.requests] == ["token 1", "token 3"])


def test_a_token_that_cannot_be_renewed_keeps_no_thread_busy_i2() -> None:
    with Peer("q") as peer:
        text = f"SharedAccessSignature sr=x&sig=y&se={int(time.time()) + 2}&skn=z"
        endpoint = Endpoint("127.0.0.1", peer.port, tls=False, credential=SignatureCredential(text))
        with Client(endpoint).open() as client:
            client.authorize("q")
            limit, iterations = time.monotonic() + 2.5, 0
            while (left := limit - time.monotonic()) > 0:
                client.wait(left)
                iterations += 1
            assert iterations < 20
            assert len(peer.requests) <= 3
            deadline = client.deadline()
            assert deadline is not None
            assert deadline > time.monotonic()


def test_tokens_are_shown_on_new_links_where_the_peer_has_ended_the_old_ones(ahead: Ahead) -> None:
    with Peer("q", "r") as peer:
        endpoint = Endpoint("127.0.0.1", peer.port, tls=False, credential=SharedKeyCredential("name", "key"))
        with Client(endpoint, shared=True).open() as client:
            client.authorize("q")
            links = client._tokens._links
            assert links is not None
            links._receiver.detach()
            links.on_lost(ConnectionLostError("the link was idle"))
            ahead.seconds = 3600 * 0.95
            client.wait_until(lambda: len(peer.requests) == 2, 5, "renewal")
            client.authorize("r")
            assert len(peer.requests) == 3
