"""A fake broker: a peer for tests of clients, in this process, over real sockets.

What it is: queues (`isthmus.testing.fake_queue`) behind `isthmus.amqp.Connection(server=True)`, with peek-lock, dispositions, drain,
`$cbs` and the parts of `$management` that routes use, and faults: silence, lost connections. What it is not: durable, or a model of
Service Bus with its times; locks never expire here. The namespace (`isthmus.broker`) is that.

Invariants:
    I1. A lost connection releases its locked messages at once; one that was closed keeps its locks, which can still be
        settled by lock token, as in a namespace.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from isthmus.amqp import (
    BATCH_FORMAT,
    Connection,
    CreditChanged,
    Disposed,
    Error,
    Event,
    Link,
    LinkAttaching,
    Role,
    SaslInit,
    Transfers,
    codec,
    section,
)
from isthmus.amqp.performative import Accepted, Disposition, Modified, Rejected
from isthmus.amqp.types import Array, Int, Symbol
from isthmus.testing.fake_queue import FakeQueue
from isthmus.transport.endpoint import Endpoint
from isthmus.transport.sender import messages_of

__all__ = ["Peer"]


class _Served:
    """One accepted connection."""

    def __init__(self, peer: Peer, sock: socket.socket) -> None:
        self.peer = peer
        self.sock = sock
        self.sock.setblocking(False)
        self.connection = Connection(server=True, container_id="peer", sasl=("ANONYMOUS",), incoming_window=50000)
        self.out = b""
        self.deliveries: dict[tuple[Link, int], tuple[FakeQueue, int]] = {}
        self.replies: list[Link] = []
        self.receivers: list[tuple[Link, FakeQueue]] = []
        self.links: list[Link] = []
        self.owed: list[tuple[Link, int, int]] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, SaslInit):
            for follower in self.connection.sasl_outcome(True):
                self.on_event(follower)
        elif isinstance(event, LinkAttaching):
            self._attach(event.link)
        elif isinstance(event, Transfers):
            self._transfers(event)
        elif isinstance(event, Disposed):
            self._disposed(event)
        elif isinstance(event, CreditChanged):
            self.pump()

    def _attach(self, link: Link) -> None:
        terminus = link.source if link.role is Role.SENDER else link.target
        address = str(terminus.address)
        if address == "$cbs" or address.endswith("/$management"):
            link.accept()
            link.context = address
            if link.role is Role.SENDER:
                self.replies.append(link)
            else:
                link.grant(100)
            return
        moved = next((error for start, error in self.peer.redirects.items() if address.startswith(start)), None)
        if moved is not None:
            link.refuse(moved)
            return
        queue = self.peer.queues.get(address)
        if queue is None:
            text = f"The messaging entity '{address}' could not be found."
            link.refuse(Error(Symbol("amqp:not-found"), text))
            return
        link.accept(max_message_size=1 << 20)
        link.context = queue
        self.links.append(link)
        if link.role is Role.RECEIVER:
            link.grant(5000)
        else:
            self.receivers.append((link, queue))

    def _transfers(self, event: Transfers) -> None:
        link, last = event.link, event.first_delivery_id + len(event.payloads) - 1
        queue = link.context
        if not isinstance(queue, FakeQueue):
            for payload in event.payloads:
                self._request(str(queue), payload)
            link.dispose(event.first_delivery_id, last)
            link.grant(100)
            return
        refusal = queue.refuse_state
        if refusal is None and queue.refuse is not None:
            refusal = Rejected(Error(Symbol(queue.refuse), "refused by the test"))
        if refusal is not None and not queue.refuse_only:
            link.dispose(event.first_delivery_id, last, refusal)
            queue.refused += len(event.payloads)
        else:
            for delivery_id, payload in enumerate(event.payloads, event.first_delivery_id):
                if refusal is not None and any(bad in payload for bad in queue.refuse_only):
                    link.dispose(delivery_id, delivery_id, refusal)
                    queue.refused += 1
                    continue
                for message in messages_of(payload) if event.message_format == BATCH_FORMAT else (payload,):
                    queue.put(message)
                self.owed.append((link, delivery_id, delivery_id))
        if link.credit < 2500:
            link.grant(5000)

    def _disposed(self, event: Disposed) -> None:
        for delivery_id in range(event.first, event.last + 1):
            queue, sequence = self.deliveries.pop((event.link, delivery_id), (None, 0))
            if queue is not None:
                queue.settle(sequence, event.state)
        if not event.settled:
            event.link.settle_sent(event.first, event.last, event.state)

    def pump(self) -> None:
        for link, queue in self.receivers:
            count = min(link.sendable, len(queue.waiting))
            if count > 0 and not link.detached:
                sequences = queue.waiting[:count]
                del queue.waiting[:count]
                tags = [os.urandom(8) + sequence.to_bytes(8, "big") for sequence in sequences]
                first = link.send_many([queue.messages[s] for s in sequences], tags)
                for number, sequence in enumerate(sequences):
                    self.deliveries[link, first + number] = (queue, sequence)
                    queue.locked[sequence] = self
            if link.drain and not link.detached:
                link.drained()
        still = []
        for link, first, last in self.owed:
            if link.context.hold:
                still.append((link, first, last))
            elif not link.detached:
                link.dispose(first, last)
        self.owed = still

    def detach(self, queue: FakeQueue, error: Error) -> None:
        for link in self.links:
            if link.context is queue and not link.detached:
                link.detach(error)
        self.deliveries = {at: held for at, held in self.deliveries.items() if held[0] is not queue}

    def _request(self, node: str, payload: bytes) -> None:
        sections = section.locate(payload)
        properties = section.decode_properties(payload, sections.properties)
        wanted = section.decode_map(payload, sections.application_properties)
        operation = str(wanted.get("operation", "")).removeprefix("com.microsoft:")
        body = codec.decode(payload, sections.body[0] + 3)[0] if sections.body[1] else None
        self.peer.requests.append((node, operation, body))
        status, answer = 202, None
        if node != "$cbs":
            status, answer = self._manage(self.peer.queues[node.removesuffix("/$management")], operation, body)
        names = ("status-code", "status-description") if node == "$cbs" else ("statusCode", "statusDescription")
        reply = section.encode_message(
            answer,
            properties={"correlation_id": properties["message_id"]},
            application_properties={names[0]: Int(status), names[1]: "answer"},
            value_body=True,
        )
        for link in self.replies:
            if link.context == node and not link.detached:
                link.send(reply, os.urandom(4), settled=True)
                break

    def _manage(self, queue: FakeQueue, operation: str, body: Any) -> tuple[int, Any]:
        if operation == "peek-message":
            start, count = body["from-sequence-number"], body["message-count"]
            found = [s for s in sorted((*queue.waiting, *queue.locked)) if s >= start][:count]
            return (200, {"messages": [{"message": queue.messages[s]} for s in found]}) if found else (204, None)
        if operation == "renew-lock":
            named = {int.from_bytes(token.bytes_le[8:], "big") for token in body["lock-tokens"]}
            if named & queue.lost:
                return 410, None
            queue.renewed |= named
            return 200, {"expirations": Array(0x83, [int(time.time() * 1000) + 60_000] * len(body["lock-tokens"]))}
        if operation == "update-disposition":
            states: dict[str, Any] = {
                "completed": Accepted(),
                "abandoned": Modified(True, False),
                "defered": Modified(True, True),
                "suspended": Rejected(Error(Symbol("x"), None, {"DeadLetterReason": body.get("deadletter-reason")})),
            }
            for token in body["lock-tokens"]:
                queue.settle(int.from_bytes(token.bytes_le[8:], "big"), states[body["disposition-status"]])
            return 200, {}
        return 501, None


class Peer:
    """A fake broker on a free loopback port, served by one thread; a context manager.

    Args:
        queues: names of its entities.

    Attributes:
        queues: the entities by name; read and change them under `lock`.
        requests: (node, operation, body) of every `$cbs` and `$management` request.
        redirects: by the beginning of an address, the error with which a link to it is refused, e.g. `amqp:link:redirect`.
        lock: held while the serving thread works.
    """

    def __init__(self, *queues: str) -> None:
        self.queues = {name: FakeQueue() for name in queues}
        self.requests: list[tuple[str, str, Any]] = []
        self.redirects: dict[str, Error] = {}
        self.lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._served: dict[int, _Served] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fake-broker", daemon=True)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint for clients."""
        return Endpoint("127.0.0.1", self.port, tls=False, authority=f"127.0.0.1:{self.port}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stopping = True
        self._thread.join(5)
        self.drop_connections()
        self._listener.close()

    def drop_connections(self) -> None:
        """Closes every connection without a Close frame, like a crash; locked messages are released."""
        with self.lock:
            for served in list(self._served.values()):
                self._forget(served)

    def detach(self, name: str, condition: str) -> None:
        """Ends all links to an entity with an error; the locks of their deliveries stay, as in a namespace."""
        with self.lock:
            for served in self._served.values():
                served.detach(self.queues[name], Error(Symbol(condition), "detached by the test"))

    def answer(self, name: str, state: Any, *, settled: bool = True) -> None:
        """Disposes of all sends whose acknowledgement is delayed, with `state` or, where it is None, without any."""
        with self.lock:
            for served in self._served.values():
                for link, first, last in served.owed:
                    if link.context is self.queues[name]:
                        link.amqp_session.write(Disposition(True, first, last, settled, state, False))

    def wait_for(self, condition: Any, timeout_seconds: float = 10.0) -> None:
        """Blocks until `condition()` holds.

        Raises:
            TimeoutError: it never did.
        """
        limit = time.monotonic() + timeout_seconds
        while True:
            with self.lock:
                if condition():
                    return
            if time.monotonic() > limit:
                raise TimeoutError("the fake broker never came into the state waited for")
            time.sleep(0.002)

    def _forget(self, served: _Served) -> None:
        self._served.pop(served.sock.fileno(), None)
        served.sock.close()
        for queue, sequence in served.deliveries.values():
            queue.give_back(sequence)

    def _run(self) -> None:
        while not self._stopping:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            with self.lock:
                for fd, served in self._served.items():
                    poll.register(fd, select.POLLIN | (select.POLLOUT if served.out else 0))
            ready = poll.poll(5)
            with self.lock:
                self._turn(ready)

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        for fd, _ in ready:
            if fd == self._listener.fileno():
                with contextlib.suppress(BlockingIOError):
                    sock, _ = self._listener.accept()
                    self._served[sock.fileno()] = _Served(self, sock)
                continue
            served = self._served.get(fd)
            if served is None:
                continue
            try:
                data = served.sock.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if not data:
                self._forget(served)
                continue
            for event in served.connection.receive(data, time.monotonic()):
                served.on_event(event)
        for served in list(self._served.values()):
            served.pump()
            served.out += served.connection.take()
            try:
                while served.out:
                    served.out = served.out[served.sock.send(served.out) :]
            except BlockingIOError:
                continue
            except OSError:
                self._forget(served)
                continue
            if served.connection.closed:
                served.deliveries.clear()
                self._forget(served)
