"""Requests and their replies over a pair of links: `$cbs` and `<entity>/$management` (docs/explanation/protocol.md, Tokens, Management).

What it is: sends a request message, matches the reply by its correlation id. Any number may be pending. What it is
not: the operations themselves (`isthmus.transport.management`).

Invariants:
    I1. A reply is matched by correlation id alone, never by order.
    I2. When the links are lost, every pending request ends with their error. An answer that cannot be read has the same
        effect.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isthmus.amqp import CodecError, codec, section
from isthmus.amqp.performative import Error, Modified, Rejected, Released, Source, Target
from isthmus.errors import IsthmusError, ProtocolError
from isthmus.transport.error import TransportError, error_from

if TYPE_CHECKING:
    from isthmus.amqp import Link, Transfers
    from isthmus.transport.client import Client

__all__ = ["Reply", "RequestLink"]

_CREDIT = 100


def _body(message: bytes, sections: section.Sections) -> Any:
    start = sections.body[0]
    return codec.decode(message, start + 3)[0] if sections.body[1] and message[start + 2] == section.VALUE else None


class Reply:
    """A pending request, then its answer.

    Attributes:
        done: whether the answer came, or will not come.
        status: status code, e.g. 200, 202, 204.
        body: the decoded amqp-value body.
        error: why there is no answer, or what the peer refused; None where the status is below 400.
    """

    __slots__ = ("_callbacks", "body", "done", "error", "path", "status")

    def __init__(self, path: str) -> None:
        self.path = path
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self.done = False
        self.status = 0
        self.body: Any = None
        self.error: IsthmusError | None = None

    def fail(self, error: IsthmusError) -> None:
        """Ends the request without an answer."""
        if not self.done:
            self.error = error
            self._finish()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls back once there is an answer, or it is certain that none will come; at once if that is so already. A request
        may have several callbacks.
        """
        if self.done:
            callback()
        else:
            self._callbacks += (callback,)

    def _finish(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()

    def resolve(self, properties: dict[Any, Any], body: Any) -> None:
        """Takes over the answer."""
        named = {str(key): value for key, value in properties.items()}
        status = named.get("statusCode", named.get("status-code", 500))
        self.status = int(status) if isinstance(status, int) else 500
        self.body = body
        if self.status >= 400:
            condition = named.get("errorCondition", named.get("error-condition"))
            text = named.get("statusDescription", named.get("status-description"))
            self.error = error_from(condition, text, path=self.path, status=self.status)
        self._finish()


class RequestLink:
    """The two links of a request/response node.

    Args:
        client: the connection.
        node: the node's address, e.g. `$cbs` or `flights/$management`.
        path: the entity, for errors.
    """

    def __init__(self, client: Client, node: str, path: str) -> None:
        self.client = client
        self.node = node
        self.path = path
        self.error: IsthmusError | None = None
        self._waiting: dict[uuid.UUID, Reply] = {}
        self._unsent: deque[tuple[Reply, bytes]] = deque()
        self._sent: dict[int, Reply] = {}
        self._session = client.begin(self)
        # The peer finds the link for a reply by this address: two pairs of links to one node must not share it.
        self._reply_to = f"{node}-{uuid.uuid4().hex[:12]}"
        self._sender = self._session.attach_sender(f"{self._reply_to}-out", Target(node), source=Source(node))
        self._receiver = self._session.attach_receiver(
            f"{self._reply_to}-in", Source(node), target=Target(self._reply_to)
        )
        self._sender.context = self._receiver.context = self
        self._receiver.grant(_CREDIT)

    def request(self, application_properties: dict[str, Any], body: Any) -> Reply:
        """Queues a request; its reply is completed while the client is serviced."""
        reply = Reply(self.path)
        if self.error is not None:
            reply.fail(self.error)
            return reply
        message_id = uuid.uuid4()
        self._waiting[message_id] = reply
        message = section.encode_message(
            body,
            properties={"message_id": message_id, "reply_to": self._reply_to},
            application_properties=application_properties,
            value_body=True,
        )
        self._unsent.append((reply, message))
        self._send()
        return reply

    def _send(self) -> None:
        while self._unsent and self._sender.sendable > 0:
            reply, message = self._unsent.popleft()
            delivery_id = self._sender.send(message, self._sender.delivery_count.to_bytes(4, "big"))
            self._sent[delivery_id] = reply

    # ---- called by the client

    def on_credit(self, link: Link) -> None:
        """The peer has granted credit for requests."""
        if link is self._sender:
            self._send()

    def on_transfers(self, event: Transfers) -> None:
        """Replies came."""
        try:
            for payload in event.payloads:
                self._take(payload)
        except CodecError as error:  # the request that it answers is unknown
            self.on_lost(error)
            return
        if not event.settled:
            last = (event.first_delivery_id + len(event.payloads) - 1) & 0xFFFFFFFF
            self._receiver.dispose(event.first_delivery_id, last)
        if self._receiver.credit < _CREDIT // 2:
            self._receiver.grant(_CREDIT)

    def _take(self, payload: bytes) -> None:
        sections = section.locate(payload)
        correlation = section.decode_properties(payload, sections.properties).get("correlation_id")
        properties = section.decode_map(payload, sections.application_properties)
        body = _body(payload, sections)
        reply = self._waiting.pop(correlation, None) if isinstance(correlation, uuid.UUID) else None
        if reply is not None:
            reply.resolve(properties, body)

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        """The peer accepted requests, or refused them unread."""
        for delivery_id in range(first, last + 1):
            reply = self._sent.pop(delivery_id, None)
            if reply is None or reply.done:
                continue
            if isinstance(state, Rejected):
                error = state.error or Error()
                reply.fail(error_from(error.condition, error.description, path=self.path))
            elif isinstance(state, Released | Modified):
                reply.fail(TransportError("", "the request was not processed", self.path))

    def on_attached(self, link: Link) -> None:
        """Both ends are open; requests are sent when there is credit."""

    def on_lost(self, error: IsthmusError) -> None:
        """The links are lost."""
        if self.error is None:
            self.error = error
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._unsent.clear()
        self._sent.clear()
        for reply in waiting:
            reply.fail(self.error)

    def close(self) -> None:
        """Ends the links."""
        self.client.end(self._session)
        self.on_lost(ProtocolError(f"'{self.node}': closed"))
