"""Requests and replies over a pair of links, as `$cbs` and `$management` nodes have them.

What it is: reading a request message, building its reply, and finding the link on which the reply goes back. What it is
not: any operation.
Spec: docs/explanation/protocol.md, Tokens, Management; AMQP management (working draft 16), section 3.

Invariants:
    I1. correlation-id of the reply is the message-id of the request with the identical AMQP type.
    I2. A reply goes to the link whose target is the request's reply-to, else to that of this name, else to that of its session and node.
    I3. No reply waits forever for a client that grants credit once and then never again: azure-servicebus for Python grants 10,000 when it
        attaches, and would wait forever for the reply to its request number 10,001.
    I4. Where this side ends the link, replies to requests that were taken, and with messages that were deleted, are sent before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from isthmus.amqp import Link, codec, section
from isthmus.amqp.types import Int, Symbol
from isthmus.broker.large import LARGE_BYTES, LargeDesk, Rope, Stream, encode_rope
from isthmus.broker.link.condition import amqp_error
from isthmus.broker.link.handler import NodeLink
from isthmus.entities import Transaction
from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["Replies", "Reply", "Request", "Respond", "Style", "find_replies"]


@dataclass(frozen=True, slots=True)
class Style:
    """The names of the properties of a node's replies: `$cbs` and `$management` differ."""

    status: str
    description: str
    condition: str


def _always() -> bool:
    return True


@dataclass(slots=True)
class Request:
    """A request message.

    Attributes:
        message_id: of any AMQP type that the client chose; None where it set none.
        reply_to: the address for the reply; None where the client set none.
        operation: e.g. ``put-token``, ``com.microsoft:peek-message``.
        properties: all application properties.
        body: the decoded amqp-value; None where there is none.
        holder: the connection that it arrived on, where a node needs it.
        transaction: in which it is to be carried out; None: at once.
        desk: reads bodies of large messages, where a node needs it.
        can_reply: whether the client has a link for the reply, and room on it: without it nothing is deleted for the client. From then on the
            link does not end before the reply.
        promised_on: that link; None otherwise.
    """

    message_id: Any
    reply_to: str | None
    operation: str
    properties: dict[Any, Any]
    body: Any
    holder: object = None
    transaction: Transaction | None = None
    desk: LargeDesk | None = None
    can_reply: Callable[[], bool] = _always
    promised_on: Replies | None = None

    @classmethod
    def decode(cls, payload: bytes) -> Request:
        """Reads a request.

        Raises:
            InvalidArgumentError: it names no operation.
            CodecError: the bytes are not a message.
        """
        sections = section.locate(payload)
        properties = section.decode_properties(payload, sections.properties)
        application = section.decode_map(payload, sections.application_properties)
        operation = application.get("operation")
        if not isinstance(operation, str):
            raise InvalidArgumentError("the request has no application property 'operation' of type string")
        start = sections.body[0]
        body = None
        if sections.body[1]:
            if payload[start + 2] != section.VALUE:
                raise InvalidArgumentError("the request's body is no amqp-value section")
            body, _ = codec.decode(payload, start + 3)
        reply_to = properties.get("reply_to")
        return cls(
            properties.get("message_id"), reply_to if isinstance(reply_to, str) else None, operation, application, body
        )

    def field(self, name: str, *kinds: type, optional: bool = False) -> Any:
        """A value of the body map.

        Raises:
            InvalidArgumentError: it is missing, or not of a type in `kinds`.
        """
        value = self.body.get(name) if isinstance(self.body, dict) else None
        if value is None:
            if optional:
                return None
            raise InvalidArgumentError(f"the request lacks '{name}'")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidArgumentError(f"'{name}' is {type(value).__name__}; expected {kinds[0].__name__}")
        return value


@dataclass(slots=True)
class Reply:
    """The reply to a request.

    Attributes:
        status: an HTTP status code.
        description: text for people.
        body: an AMQP value; None is sent as an empty map.
        condition: error condition; empty for success.
    """

    status: int = 200
    description: str = "OK"
    body: Any = None
    condition: str = ""

    def encode(self, request: Request | None, style: Style) -> bytes | Rope:
        """The reply message to a request; a rope if it contains large messages."""
        properties: dict[str, Any] = {style.status: Int(self.status), style.description: self.description}
        if self.condition:
            properties[style.condition] = Symbol(self.condition)
        tracking = None if request is None else request.properties.get("com.microsoft:tracking-id")
        if tracking is not None:
            properties["com.microsoft:tracking-id"] = tracking
        message_id = None if request is None else request.message_id
        large = encode_rope(self.body)
        message = section.encode_message(
            {} if self.body is None or large else self.body,
            properties=None if message_id is None else {"correlation_id": message_id},
            application_properties=properties,
            value_body=True,
        )
        if large is None:
            return message
        start = section.locate(message).body[0]
        return Rope([message[: start + 3], *large.segments])


Respond = Callable[[Reply], None]

# A client that granted at least so much credit at once, has used all of it, and grants no more for so long while a reply waits, does not
# count replies.
_ONE_GRANT = 1000
_STARVED_SECONDS = 1.0
# Bytes of replies that have credit and wait while one before them is sent in parts. The client waits for them, and reads; a
# connection keeps more for a client that does not read (`isthmus.broker.peer`).
_COVERED_BYTES = 64 << 20


class Way(Protocol):
    """The connection below a link."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes more bytes now."""
        ...

    @property
    def takes_bytes(self) -> bool:
        """As `is_writable`, and also where the connection is about to be closed from this side."""
        ...

    def flush(self) -> None:
        """Sends queued bytes now."""
        ...

    def touch(self) -> None:
        """Sends queued bytes at the end of the loop's iteration."""
        ...

    def touch_awaited(self) -> None:
        """As `touch`; a stop waits until these bytes have left the socket's buffer."""
        ...

    @property
    def large(self) -> LargeDesk:
        """The source of large messages."""
        ...


class ToTheEnd:
    """The connection for what its client waits for: replies, and messages that were deleted for it. They are sent also while this side is
    about to close it, and a stop waits until they have left the socket's buffer, whether or not their link is there.
    """

    def __init__(self, way: Way) -> None:
        self._way = way

    @property
    def is_writable(self) -> bool:
        return self._way.takes_bytes

    def flush(self) -> None:
        self._way.touch_awaited()
        self._way.flush()


class Replies(NodeLink):
    """The link on which a node's replies are sent to the client.

    Args:
        link: whose sender we are.
        node: path of the node that the link comes from.
        way: the connection; None where no reply is large.

    Attributes:
        waiting_bytes: in memory, of replies that wait for credit.
        promised: replies that are not sent yet, or to come, with messages that are being deleted for the client.
        expected: replies that are to come, to requests that were taken.
    """

    def __init__(self, link: Link, node: str, way: Way | None = None) -> None:
        self.link = link
        self.node = node
        self._way = way
        self._waiting: deque[tuple[bytes | Rope, bool]] = deque()  # with whether it was promised
        self.waiting_bytes = self.promised = self.expected = 0
        self._count = 0
        self._stream: Stream | None = None
        self._grants = self._overdrawn = 0
        self._granted_to = link.delivery_count
        self._starved_at: float | None = None
        self._counts_replies = True
        self._is_behind_window = self._has_sent_promised = False
        self._on_sent_all: Callable[[], None] | None = None  # ends the link, once nothing is expected or promised

    @property
    def owes(self) -> bool:
        """Whether a reply waits for its window, is sent in parts, or is due."""
        return not self.link.detached and (self._is_held_up or self._is_due)

    @property
    def _is_due(self) -> bool:
        """Whether a reply with credit waits for one before it, or one with deleted messages for credit."""
        return self.promised > 0 or (bool(self._waiting) and self.link.credit > 0)

    @property
    def _is_held_up(self) -> bool:
        return self._stream is not None or self.link.amqp_session.is_waiting(self.link)

    @property
    def is_ending(self) -> bool:
        """Whether this side is about to end the link."""
        return self._on_sent_all is not None

    def when_sent(self, run: Callable[[], None]) -> None:
        self._on_sent_all = run
        self.flush()

    def has_room(self, limit_bytes: int) -> bool:
        """Whether one more reply may wait.

        Args:
            limit_bytes: of replies that wait, where the client has not granted credit for one more.
        """
        is_covered = self.link.credit > len(self._waiting) or not self._counts_replies
        return self.waiting_bytes <= (max(limit_bytes, _COVERED_BYTES) if is_covered else limit_bytes)

    def send(self, message: bytes | Rope, *, is_promised: bool = False) -> None:
        """Sends now, or as soon as the client grants credit."""
        self._waiting.append((message, is_promised))
        self.waiting_bytes += _memory_bytes(message)
        self.flush()

    def flush(self) -> None:
        """Sends waiting replies, as far as the credit allows."""
        self._flush()
        if (run := self._on_sent_all) is None:
            return
        # A large reply alone, to a peek that the client may not read, is broken off.
        is_awaited = self._stream is None or self._has_sent_promised
        if self.link.detached or not (self.expected or self._is_due or (is_awaited and self._is_held_up)):
            self._on_sent_all = None
            run()

    def _flush(self) -> None:
        while (
            self._waiting
            and self._stream is None
            and (self.link.credit > 0 or not self._counts_replies)
            and not self.link.detached
            and not self.link.amqp_session.ended
        ):
            if not self.link.credit:  # I3
                self.link.overdraw()
                self._overdrawn += 1
            message, is_promised = self._waiting[0]
            is_large = isinstance(message, Rope) or len(message) > LARGE_BYTES
            if is_large and self.link.sendable < 1:
                return
            self._count += 1
            # Settled: no client of the service settles replies.
            self._waiting.popleft()
            self.promised -= is_promised
            self._has_sent_promised |= is_promised
            self.waiting_bytes -= _memory_bytes(message)
            tag = self._count.to_bytes(4, "big")
            if isinstance(message, Rope) or is_large:
                assert self._way is not None
                way = ToTheEnd(self._way)
                self._stream = Stream(self.link, message, tag, way, self._way.large, self._on_sent, settled=True)
            else:
                self.link.send(message, tag, settled=True)
                if self._way is not None:
                    self._way.touch_awaited()
                    self._is_behind_window = self.link.amqp_session.is_waiting(self.link)

    def on_credit(self) -> None:
        granted_to = self.link.delivery_count + self.link.credit - self._overdrawn
        if granted_to != self._granted_to:
            self._granted_to = granted_to
            self._grants += 1
            self._counts_replies = True
        if self._is_behind_window and self._way is not None and not self.link.amqp_session.is_waiting(self.link):
            self._is_behind_window = False
            self._way.touch_awaited()  # the rest of a reply goes to the socket only now
        self.resume()
        if self.link.drain and not self.link.is_sending:
            self.link.drained()

    def on_writable(self) -> None:
        self.resume()

    def on_tick(self, now: float) -> None:
        if not self._waiting or self.link.credit or self._grants != 1 or self._count < _ONE_GRANT:
            self._starved_at = None
        elif self._starved_at is None:
            self._starved_at = now
        elif now - self._starved_at >= _STARVED_SECONDS:
            self._counts_replies = False
            self.resume()

    def resume(self) -> None:
        """The connection or the session has room again."""
        if self._stream is not None:
            self._stream.pump()
        else:
            self.flush()

    def close(self) -> None:
        """The link is gone."""
        if self._stream is not None:
            self._stream.close()
        self._waiting.clear()
        self._on_sent_all = None

    def _on_sent(self, error: IsthmusError | None) -> None:
        self._stream = None
        if error is not None:
            self.link.detach(amqp_error(error))
        self.flush()
        if self.link.drain:
            self.link.drained()
        if self._way is not None:
            self._way.touch()


def _memory_bytes(message: bytes | Rope) -> int:
    return message.memory_bytes if isinstance(message, Rope) else len(message)


def find_replies(links: Iterable[Replies], request: Request | None, node: str, arrived_on: Link) -> Replies | None:
    """The link for the reply to a request that `arrived_on` a link to `node`; None if the client has none."""
    # A client may use one address for several links: the reply belongs to the session on which the request came.
    candidates = sorted(links, key=lambda each: (each.is_ending, each.link.amqp_session is not arrived_on.amqp_session))
    wanted = None if request is None else request.reply_to
    if wanted is not None:
        for replies in candidates:
            if _address(replies.link.target) == wanted:
                return replies
        for replies in candidates:
            if replies.link.name == wanted:
                return replies
    same = [each for each in candidates if each.node == node and each.link.amqp_session is arrived_on.amqp_session]
    return min(reversed(same), key=lambda each: each.is_ending, default=None)


def _address(terminus: Any) -> str | None:
    address = getattr(terminus, "address", None)
    return address if isinstance(address, str) else None


def text_map(value: Mapping[Any, Any] | None) -> dict[str, Any]:
    """A map with its keys as text."""
    return {} if value is None else {str(key): item for key, item in value.items()}
