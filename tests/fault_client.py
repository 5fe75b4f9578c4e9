"""What the fault tests share: clients of the product's own transport that count what was answered, and looks at a queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from isthmus.amqp import SentSettled, codec, section
from isthmus.connectors.servicebus.connect import endpoint_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess
from isthmus.transport import Client, Endpoint, Management, Receiver, Sender

STATE = "x-opt-message-state"
SEQUENCE = "x-opt-sequence-number"


class AnsweringClient(Client):
    """A client that also tells receivers when the namespace has confirmed their dispositions."""

    def _dispatch(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, SentSettled):
                owner = self._owners.get(event.amqp_session)
                if isinstance(owner, AnsweredReceiver):
                    owner.on_answered(event.first, event.last, event.state)
        super()._dispatch(events)


class AnsweredReceiver(Receiver):
    """A receiver whose dispositions are unsettled, so that the namespace answers each once it is durable."""

    def __init__(self, client: Client, path: str) -> None:
        super().__init__(client, path)
        self.answers: list[tuple[int, int, Any]] = []

    def on_answered(self, first: int, last: int, state: Any) -> None:
        self.answers.append((first, last, state))

    def ask(self, first: int, last: int, state: Any = None) -> None:
        self.link.dispose(first, last, state, settled=False)


@dataclass
class Seen:
    """A message as a peek shows it; `state` is 0 active, 1 deferred, 2 scheduled."""

    sequence: int
    body: bytes
    state: int
    delivery_count: int
    annotations: dict[str, Any]


def endpoint_for(ns: NamespaceProcess) -> Endpoint:
    return endpoint_of_string(ConnectionString.parse(ns.connection_string))


@contextmanager
def connected(ns: NamespaceProcess, *paths: str) -> Iterator[AnsweringClient]:
    client = AnsweringClient(endpoint_for(ns))
    client.open()
    try:
        for path in paths:
            client.authorize(path)
        yield client
    finally:
        client.close()


def make_message(body: bytes, message_id: str = "", **sections: Any) -> bytes:
    return section.encode_message(body, properties={"message_id": message_id or os.urandom(8).hex()}, **sections)


def read_message(payload: bytes) -> Seen:
    sections = section.locate(payload)
    annotations = {str(key): value for key, value in section.decode_map(payload, sections.message_annotations).items()}
    body, _ = codec.decode(payload, sections.body[0] + 3)
    count = section.decode_header(payload, sections.header).delivery_count
    return Seen(int(annotations[SEQUENCE]), bytes(body), int(annotations.get(STATE, 0)), count, annotations)


def look(client: Client, path: str) -> list[Seen]:
    """Everything a queue holds, in sequence order."""
    management = Management(client, path)
    found: list[Seen] = []
    while page := management.peek(found[-1].sequence + 1 if found else 0, 1000):
        found += [read_message(payload) for payload in page]
    management.close()
    return found


def works(ns: NamespaceProcess, path: str) -> None:
    """A normal client sends, receives and completes a message."""
    mark = os.urandom(8)
    with connected(ns, path) as client:
        Sender(client, path).wait_ready().send_all([make_message(mark)])
        receiver = AnsweredReceiver(client, path)
        receiver.grant(1)
        client.wait_until(lambda: receiver.arrived, 20, "a message")
        (run,) = receiver.take()
        assert read_message(run.payloads[0]).body == mark
        receiver.ask(run.first_id, run.first_id)
        client.wait_until(lambda: receiver.answers, 20, "an answer")
