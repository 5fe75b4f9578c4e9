"""What tests of the receivers of two namespaces share: one face for threads and asyncio, senders, and a look at what is left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.client.fault_client import connected
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.testing.namespace import NamespaceProcess, NamespaceStartError
from isthmus.transport import Management, Sender

__all__ = [
    "KINDS",
    "InThread",
    "Receiver",
    "copied",
    "left",
    "make_message",
    "open_receiver",
    "running",
    "send",
    "wait_until",
]

KINDS = ("threads", "asyncio")
Receiver = Any


class _Loop:
    """An event loop in a thread, for a test that is written for threads."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def close(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class _Facade:
    """A receiver for asyncio with the methods of one for threads."""

    def __init__(self, loop: _Loop, receiver: Any) -> None:
        self._loop = loop
        self._receiver = receiver

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._receiver, name)
        if name == "session":
            return _Facade(self._loop, found)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self._loop.run(found(*arguments, **options))

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run(self._receiver.__anext__())
            except StopAsyncIteration:
                return


@contextmanager
def open_receiver(kind: str, name: str, *arguments: Any, **options: Any) -> Iterator[Receiver]:
    """`isthmus.client.NAME(…)` or the one of `isthmus.client.aio`, entered."""
    from isthmus import client
    from isthmus.client import aio

    if kind == "threads":
        with getattr(client, name)(*arguments, **options) as receiver:
            yield receiver
        return
    loop = _Loop()

    async def enter() -> Any:
        return await getattr(aio, name)(*arguments, **options).__aenter__()

    try:
        receiver = loop.run(enter())
        try:
            yield _Facade(loop, receiver)
        finally:
            loop.run(receiver.close())
    finally:
        loop.close()


class InThread:
    """Runs a function in a thread; its error is raised at the end of the block."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                what()
            except BaseException as error:  # noqa: BLE001 - raised at the end of the block
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(120)
        if self._error is not None:
            raise self._error


def make_message(name: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(options.pop("body", name).encode(), message_id=name, **options)


def send(ns: NamespaceProcess, entity: str, messages: Iterable[ServiceBusMessage]) -> None:
    """As a publisher does; fails where the namespace is away."""
    with ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0) as client:
        find = client.get_topic_sender if entity.startswith("topic") else client.get_queue_sender
        with find(entity) as sender:
            sender.send_messages(list(messages))


def left(ns: NamespaceProcess, queue: str, seconds: float = 20.0, **options: Any) -> list[str]:
    """Ids of the contents of a queue, once it is empty or the time is over."""
    limit = time.monotonic() + seconds
    with (
        ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0) as client,
        client.get_queue_receiver(queue, **options) as receiver,
    ):
        while True:
            found = [str(each.message_id) for each in receiver.peek_messages(1000, sequence_number=1)]
            if not found or time.monotonic() > limit:
                return found
            time.sleep(0.1)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.05)


def copied(source: NamespaceProcess, target: NamespaceProcess, queue: str, subscription: str = "") -> int:
    """Copies of all messages of a queue or subscription, as a route makes them; the originals stay."""
    path = f"{queue}/Subscriptions/{subscription}" if subscription else queue
    with connected(source, path) as client:
        payloads = Management(client, path).peek(0, 1000)
        rewriter = MessageRewriter(f"ewr/{queue}", "jfk", origin_namespace=client.namespace_id)
    offsets = [0]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    copies, refused = rewriter.copy_all(b"".join(payloads), offsets, int(time.time() * 1000))
    assert not refused
    with connected(target, queue) as client:
        Sender(client, queue).wait_ready().send_all(copies)
    return len(copies)


def running(*namespaces: NamespaceProcess) -> None:
    """Starts again those that a test has killed."""
    for ns in namespaces:
        try:
            ns.pid  # noqa: B018 - raises where it does not run
        except NamespaceStartError:
            ns.start()
