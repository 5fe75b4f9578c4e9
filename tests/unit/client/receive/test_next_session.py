"""The search for the next session, without namespaces."""

from __future__ import annotations

import threading
from typing import Any, Self, cast

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from isthmus.client.endpoint import Endpoint
from isthmus.client.receive import next_session
from isthmus.client.receive.branch import Source


class Session:
    """Of the SDK's receiver."""

    session_id = "one"


class Receiver:
    """Opens at once, or hangs until its socket is shut down."""

    session = Session()

    def __init__(self, hangs: bool) -> None:
        self._hangs = hangs
        self._cut = threading.Event()
        self.sock = self
        self._handler = self._connection = self._transport = self

    def shutdown(self, how: int) -> None:
        self._cut.set()

    def __enter__(self) -> Self:
        if self._hangs:
            assert self._cut.wait(30), "it was not ended"
            raise ConnectionError("cut")
        return self

    def close(self) -> None:
        pass


class Namespace:
    """Replaces the endpoint and its client."""

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs

    def client(self, **_: object) -> Namespace:
        return self

    def get_queue_receiver(self, entity: str, **_: object) -> Receiver:
        return Receiver(self.hangs)

    def close(self) -> None:
        pass


def endpoints(*hang: bool) -> dict[str, Endpoint]:
    return {side: cast("Endpoint", Namespace(each)) for side, each in zip(("primary", "secondary"), hang, strict=True)}


def test_a_namespace_that_hangs_keeps_no_receiver_from_a_session_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """N2: it accepts the connection, and says nothing."""
    monkeypatch.setattr(next_session, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(next_session, "_ASK_SECONDS", 0.0)
    found = next_session.find_session(endpoints(True, False), Source(entity="orders"), 30.0, 0.001)
    assert (found.session_id, list(found.opened)) == ("one", ["secondary"])


def test_with_both_hanging_the_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_session, "_GRACE_SECONDS", 0.0)
    with pytest.raises(OperationTimeoutError) as raised:
        next_session.find_session(endpoints(True, True), Source(entity="orders"), 0.0, 0.001)
    cause: Any = raised.value.__cause__
    assert isinstance(cause, ConnectionError)
