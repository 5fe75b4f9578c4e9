"""The systems of streams of the fault matrix: each is started, killed, and sent to by its own means.

What it is: a server in a process of its own, its lines in the federation file, and what sends messages to one of its streams and returns once
they are acknowledged. What it is not: a route's end; `run` reads and writes it as any other.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaError, Producer

from harness.client.rabbitmq_client import RabbitClient
from harness.conformance.rabbitmq_end import DURABLE_SECONDS
from harness.matrix.matrix_scenario import EVENTS, HUB, LOG
from harness.server.kafka_broker import KafkaBroker, broker
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server
from isthmus.connectors.kafka.mapping.mapping import to_record as to_kafka
from isthmus.connectors.rabbitmq.mapping.outward import to_record as to_rabbit
from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.testing.namespace import NamespaceProcess
from isthmus.transport import Sender

__all__ = ["LogServer", "open_log"]

READY_SECONDS = 120.0
PASSWORD_NAME, CONNECTION_NAME = "MATRIX_RABBIT_PASSWORD", "MATRIX_EVENTS_CONNECTION"

Send = Callable[[Sequence[bytes]], object]


class LogServer(Protocol):
    """A system."""

    @property
    def line(self) -> str:
        """Its line in the federation file."""
        ...

    def sender(self, stream: str) -> AbstractContextManager[Send]:
        """What sends messages to a stream, and returns once they are acknowledged, or raises."""
        ...

    def kill(self) -> None:
        """Kills it with -9."""
        ...

    def start(self) -> None:
        """Starts it again; it serves its streams then."""
        ...


class Kafka:
    """A broker of Apache Kafka."""

    def __init__(self, server: KafkaBroker, streams: Sequence[str]) -> None:
        self._server = server
        for stream in streams:
            server.create(stream)

    @property
    def line(self) -> str:
        return f"{HUB}: {{kind: kafka, bootstrap: '{self._server.address}'}}"

    @contextmanager
    def sender(self, stream: str) -> Iterator[Send]:
        """The client sends again by itself, in order, until the broker has each record once."""
        producer = Producer(
            {
                "bootstrap.servers": self._server.address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "log_level": 0,
            }
        )

        def send(messages: Sequence[bytes]) -> None:
            errors: list[KafkaError | None] = []
            for record in map(to_kafka, messages):
                producer.produce(
                    stream,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=lambda error, _: errors.append(error),
                )
            assert producer.flush(READY_SECONDS) == 0, "the broker does not come back"
            assert not any(errors), errors

        yield send

    def kill(self) -> None:
        self._server.stop(signal.SIGKILL)

    def start(self) -> None:
        self._server.start()


class Rabbit:
    """A node of RabbitMQ."""

    def __init__(self, server: RabbitServer, streams: Sequence[str]) -> None:
        self._server, self._streams = server, streams
        os.environ[PASSWORD_NAME] = PASSWORD
        for stream in streams:
            server.queue(stream, "stream")
        self._made_at = time.monotonic()

    @property
    def line(self) -> str:
        return (
            f"{LOG}: {{kind: rabbitmq-streams, host: '127.0.0.1:{self._server.port}', username: {USER}, "
            f"password: env:{PASSWORD_NAME}, checkpoints: checkpoints}}"
        )

    @contextmanager
    def sender(self, stream: str) -> Iterator[Send]:
        """Each time once the stream is there: a node that has just started confirms, and drops, what it cannot route yet."""
        with RabbitClient(self._server.port) as client:

            def send(messages: Sequence[bytes]) -> None:
                self._look(stream)
                client.publish([to_rabbit(each)._replace(routing_key=stream) for each in messages])
                if client.returned:
                    raise ConnectionLostError(f"stream {stream} is away")

            yield send

    def _look(self, stream: str) -> None:
        options = {"host": f"127.0.0.1:{self._server.port}", "username": USER, "password": f"env:{PASSWORD_NAME}"}
        with Probe(read_broker(options)) as probe:
            probe.queue(stream)

    def kill(self) -> None:
        time.sleep(max(0.0, self._made_at + DURABLE_SECONDS - time.monotonic()))
        self._server.stop(signal.SIGKILL)

    def start(self) -> None:
        self._server.start()
        limit = time.monotonic() + READY_SECONDS
        for stream in self._streams:
            while True:
                try:
                    self._look(stream)
                    break
                except IsthmusError:
                    assert time.monotonic() < limit, f"stream {stream} does not come back"
                    time.sleep(0.1)


class Events:
    """A namespace of event hubs."""

    def __init__(self, server: NamespaceProcess) -> None:
        self._server = server
        os.environ[CONNECTION_NAME] = server.connection_string

    @property
    def line(self) -> str:
        return (
            f"{EVENTS}: {{kind: eventhubs, connection: env:{CONNECTION_NAME}, ca_file: '{self._server.ca_file}', "
            "checkpoints: checkpoints}"
        )

    @contextmanager
    def sender(self, stream: str) -> Iterator[Send]:
        endpoint = endpoint_of_string(ConnectionString.parse(self._server.connection_string))
        with open_client(endpoint, stream, "matrix") as client:
            sender = Sender(client, f"{stream}/Partitions/0").wait_ready()
            yield lambda messages: sender.send_all(messages, batch=len(messages))

    def kill(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


@contextmanager
def open_log(alias: str, folder: Path, streams: Sequence[str]) -> Iterator[LogServer]:
    """A system with these streams, of one partition each; `apply` makes those of event hubs."""
    folder.mkdir()
    with ExitStack() as stack:
        if alias == HUB:
            yield Kafka(stack.enter_context(broker(folder)), streams)
        elif alias == LOG:
            yield Rabbit(stack.enter_context(rabbit_server(folder)), streams)
        else:
            server = NamespaceProcess(folder)
            stack.callback(server.kill)
            server.start()
            yield Events(server)
