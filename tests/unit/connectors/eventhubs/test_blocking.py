"""isthmus.connectors.eventhubs.blocking and peek: no connection is left open that was lost or refused."""

from __future__ import annotations

from typing import Any, Self

import pytest

from isthmus.connectors.eventhubs import blocking
from isthmus.connectors.eventhubs.blocking import BlockingHubs
from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.peek import HubPeek
from isthmus.errors import ConnectionLostError, UnauthorizedError
from isthmus.transport import Endpoint

OPTIONS = HubOptions(connection="env:NONE")
PLACE = Endpoint("127.0.0.1", 1, tls=False)


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
    hubs = BlockingHubs(OPTIONS, PLACE)
    assert hubs.identity() == "hub"
    FakeClient.made[0].error = ConnectionLostError("gone")
    assert hubs.identity() == "hub"
    assert [each.is_closed for each in FakeClient.made] == [True, False]


def test_a_hub_that_cannot_be_looked_at_leaves_no_connection() -> None:
    with pytest.raises(UnauthorizedError):
        HubPeek(OPTIONS, "flights", hubs=BlockingHubs(OPTIONS, PLACE))
    assert [each.is_closed for each in FakeClient.made] == [True]
