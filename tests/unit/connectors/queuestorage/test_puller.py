"""isthmus.connectors.queuestorage.source: the poison queue, without a service."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.pull.puller import Lease, PullError
from isthmus.connectors.queuestorage.option import read_source
from isthmus.connectors.queuestorage.source import QueuePuller

BAD = Disposition("dead-letter", "Bad", "why")


class Queue:
    """A queue of the SDK with one message, whose deletion answers as the test says."""

    url = "http://127.0.0.1/account/q"

    def __init__(self) -> None:
        self.put: list[str] = []
        self.deleted: list[str] = []
        self.answers: list[Exception] = []

    def send_message(self, text: str, *, time_to_live: int) -> None:
        self.put.append(text)

    def delete_message(self, name: str, receipt: str) -> None:
        if self.answers:
            raise self.answers.pop(0)
        self.deleted.append(receipt)

    def receive_messages(self, **_: Any) -> Any:
        now = datetime.now(UTC)
        found = SimpleNamespace(
            id="1", pop_receipt="r2", inserted_on=now, expires_on=None, content="eA==", dequeue_count=2
        )
        return SimpleNamespace(by_page=lambda: iter([[found]]))


@pytest.fixture
def puller() -> Any:
    made = QueuePuller(read_source({"connection": "env:C", "entity": "q"}))
    for name in ("_client", "_poison"):
        setattr(made, name, Queue())
    return made


def lost() -> Exception:
    error = HttpResponseError("gone")
    error.error_code = "PopReceiptMismatch"  # type: ignore[attr-defined]
    return error


def test_i1_a_message_that_cannot_be_deleted_at_first_is_in_the_poison_queue_once(puller: Any) -> None:
    queue, poison = puller._client, puller._poison
    queue.answers = [ServiceRequestError("no answer")]
    message = section.encode_message(b"x")
    with pytest.raises(PullError):
        puller.set_aside(Lease("1", "r", 30.0), message, BAD)
    assert puller.set_aside(Lease("1", "r", 30.0), message, BAD)
    assert (len(poison.put), queue.deleted) == (1, ["r"])
    assert puller.set_aside(Lease("1", "r", 30.0), message, BAD)
    assert len(poison.put) == 2, "it was done with: this is another one"


def test_i1_a_message_whose_lock_was_lost_when_it_was_in_the_poison_queue_is_deleted_when_it_comes_again(
    puller: Any,
) -> None:
    queue, poison = puller._client, puller._poison
    queue.answers = [lost()]
    assert not puller.set_aside(Lease("1", "r", 30.0), section.encode_message(b"x"), BAD)
    assert puller.receive(5) == []
    assert (len(poison.put), queue.deleted) == (1, ["r2"])
    assert len(puller.receive(5)) == 1
