"""The arguments of receivers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode

from isthmus.client import FailoverReceiver, ReplicatedReceiver
from isthmus.client.seen import Bounds
from isthmus.errors import InvalidArgumentError

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"entity": ""}, "entity is empty"),
        ({"session_id": 5}, "session_id has to be the name of a session, or NEXT_AVAILABLE_SESSION"),
        ({"prefetch_count": 0}, "prefetch_count is 0; it has to be at least 1"),
        ({"receiver_options": {"receive_mode": "receiveanddelete"}}, "receive_mode is receiveanddelete"),
        (
            {"receiver_options": {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}},
            "receive_mode is receiveanddelete",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], text: str) -> None:
    chosen = {"entity": "orders", **arguments}
    with pytest.raises(InvalidArgumentError, match=text):
        ReplicatedReceiver(CONNECTION, CONNECTION, **chosen)  # type: ignore[arg-type]


def test_a_failover_receiver_reads_named_sessions_alone() -> None:
    with pytest.raises(InvalidArgumentError, match="the next one may be another at each namespace"):
        FailoverReceiver(CONNECTION, CONNECTION, "orders", session_id=NEXT_AVAILABLE_SESSION)  # type: ignore[arg-type]


def test_bounds_are_positive() -> None:
    with pytest.raises(InvalidArgumentError, match="lease of the seen list is 0:00:00"):
        Bounds(lease=timedelta(0))
    with pytest.raises(InvalidArgumentError, match="max_count of the seen list is 0"):
        Bounds(max_count=0)


def test_a_receiver_that_was_never_entered_can_be_closed(tmp_path: Path) -> None:
    receiver = ReplicatedReceiver(CONNECTION, CONNECTION, "orders", seen=tmp_path / "seen.db")
    receiver.close()
    with pytest.raises(ValueError, match="the receiver is closed"):
        receiver.receive_messages()


@pytest.mark.parametrize("kind", [ReplicatedReceiver, FailoverReceiver])
def test_an_opening_that_is_interrupted_leaves_nothing_that_receives(
    kind: type[ReplicatedReceiver | FailoverReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = kind(CONNECTION, CONNECTION, "orders")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(receiver._engine, "open_side", lambda side: None)
    monkeypatch.setattr(receiver._engine, "wait_open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        receiver.__enter__()
    assert receiver._engine.is_closed
