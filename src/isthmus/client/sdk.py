"""The undocumented parts of azure-servicebus that this package uses.

What it is: the only module that uses the SDK's private names, each for a stated reason. What it is not: a fork; where a
later version of the SDK lacks a name, `tests/unit/client/test_sdk.py` fails.

Reasons: the SDK sends a batch only of messages that it encodes itself, once for each namespace; it cannot end an operation that waits
for a connection that stopped answering; it gives up a connection over which a message does not get through within a second; it does not report how large a message may be; its thread that keeps a receiver's connection
alive reads messages beside the receiving thread, so that two messages may be reordered; and it judges by this machine's clock whether a
message is locked.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

__all__ = [
    "WITHOUT_THREAD",
    "batch_of",
    "data_body",
    "encode",
    "confirmed",
    "limits",
    "listen",
    "message_list",
    "release",
    "renew_seconds",
    "schedule_annotations",
    "sever",
    "socket_of",
    "watch_handler",
    "without_lock_check",
    "without_session_clock",
    "writing_within",
]


def message_list(messages: Any) -> list[AmqpAnnotatedMessage]:
    """The value that an application passed to `send_messages`, as the SDK's annotated messages.

    Raises:
        TypeError: an item is no message.
    """
    if isinstance(messages, ServiceBusMessageBatch):
        return [each.raw_amqp_message for each in messages._messages]
    if isinstance(messages, Iterable) and not isinstance(messages, (Mapping, str, bytes)):
        return [_annotated(each) for each in messages]
    return [_annotated(messages)]


def _annotated(message: Any) -> AmqpAnnotatedMessage:
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        message = ServiceBusMessage(**message)
    if not isinstance(message, ServiceBusMessage):
        raise TypeError(
            "only ServiceBusMessage, AmqpAnnotatedMessage or mappings that describe messages can be sent; this is "
            f"{type(message).__name__}"
        )
    return message.raw_amqp_message


def data_body(message: AmqpAnnotatedMessage) -> bytes | None:
    """The contents of a body of one data section; None for any other body."""
    if message.body_type is not AmqpMessageBodyType.DATA:
        return None
    parts = message._data_body
    if isinstance(parts, bytes):
        return parts
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], bytes):
        return None
    return parts[0]


def encode(message: AmqpAnnotatedMessage, message_id: Any) -> bytes:
    """The message as the SDK would send it, with this MessageId."""
    if message.application_properties:  # the SDK decodes binary values in place
        kept = message.application_properties
        message.application_properties = dict(kept)
        try:
            outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
        finally:
            message.application_properties = kept
    else:
        outgoing = PyamqpTransport.to_outgoing_amqp_message(message)
    if outgoing.properties is None:
        from azure.servicebus._pyamqp.message import Properties

        outgoing = outgoing._replace(properties=Properties(message_id=message_id))
    else:
        outgoing = outgoing._replace(properties=outgoing.properties._replace(message_id=message_id))
    return bytes(encode_payload(bytearray(), outgoing))


def batch_of(
    sender: Any, payloads: Sequence[bytes], message_id: str | None, session_id: str | None, partition_key: str | None
) -> ServiceBusMessageBatch:
    """A batch of encoded messages, for `sender.send_messages`."""
    batch: Any = sender.create_message_batch()
    batch._message[5].extend(payloads)
    batch._count = len(payloads)
    set_envelope = getattr(
        batch._amqp_transport, "set_batch_envelope_properties", None
    )  # not in the SDK's older versions
    if set_envelope is not None:
        set_envelope(batch._message, message_id, session_id, partition_key)
    return batch  # type: ignore[no-any-return]


def limits(sender: Any) -> tuple[int, int]:
    """The largest message and the largest batch that an open sender's link accepts, in bytes; 0 if unknown."""
    message = int(getattr(sender, "_max_message_size_on_link", 0))
    return message, int(getattr(sender, "_max_batch_size_on_link", message))


WITHOUT_THREAD: Mapping[str, Any] = {"keep_alive": 0}
"""Arguments of a client or receiver that starts no keep-alive thread. That thread of azure-servicebus 7.15 takes messages from the socket
every 30 s while the caller's thread does, so that messages may be reordered; and closing the connection waits for it, up to a second.
The owner calls `listen` instead."""


def listen(receiver: Any) -> None:
    """Read the frames that have arrived at a receiver or sender, and send a keep-alive; grants no credit."""
    handler: Any = getattr(receiver, "_handler", None)
    connection, link = getattr(handler, "_connection", None), getattr(handler, "_link", None)
    if connection is not None and link is not None:
        connection.listen(wait=handler._socket_timeout, batch=max(1, link.current_link_credit))


def schedule_annotations(when: datetime) -> dict[str | bytes, Any]:
    """The annotations with which the SDK schedules a message."""
    return dict(ServiceBusMessage(None, scheduled_enqueue_time_utc=when).raw_amqp_message.annotations or {})


def watch_handler(sender: Any, seen: Callable[[Any], None], ready: Callable[[], None]) -> None:
    """Observe each connection that a sender opens: the first one, or one that replaces another that it closed after a refusal.

    Args:
        sender: of the SDK, not open yet.
        seen: called with each protocol client before it connects: its socket has to be closed if the opening fails.
        ready: called once a link is open; the call that opened the link raises what it raises, before anything is sent.
    """
    create, open_link = sender._create_handler, sender._open

    def created(auth: Any) -> None:
        create(auth)
        seen(sender._handler)

    def opened(*args: Any, **kwargs: Any) -> None:
        open_link(*args, **kwargs)
        ready()

    sender._create_handler, sender._open = created, opened


def socket_of(handler: Any) -> Any:
    """The socket below a protocol client; None if there is none yet."""
    found = handler
    for name in ("_connection", "_transport", "sock"):
        found = getattr(found, name, None)
    return getattr(found, "sock", found)  # over WebSocket there is another socket below it


def sever(sock: Any) -> None:
    """Shut a socket down, from any thread, so that a call that waits for it ends.

    The SDK's own `close` waits for the remote side, and an open that waits for a remote side that stopped answering never ends.
    """
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError, ValueError):
            # A TLS socket must not be unwrapped here: another thread reads from it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def writing_within(sock: Any, seconds: float | None) -> Iterator[None]:
    """Let writes to a socket, and their way to the remote machine, take so long; None: no limit.

    By default the SDK gives up a connection that does not take a message within 0.2 s, and whose bytes are not acknowledged for one second: over a slow
    network it would be lost at each large message.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if not isinstance(sock, socket.socket):
        yield
        return
    before, kept_ms = sock.gettimeout(), 0
    with contextlib.suppress(OSError):  # closed meanwhile, or no TCP
        sock.settimeout(seconds)
        if option is not None:
            kept_ms = sock.getsockopt(socket.IPPROTO_TCP, option)
            sock.setsockopt(socket.IPPROTO_TCP, option, 0 if seconds is None else max(1, int(seconds * 1000)))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            sock.settimeout(before)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, kept_ms)


def release(sock: Any) -> None:
    """Close a socket that the SDK leaves open after its connection was lost."""
    if isinstance(sock, socket.socket):
        with contextlib.suppress(OSError):
            sock.close()


@contextlib.contextmanager
def without_lock_check(message: Any) -> Iterator[None]:
    """Let the namespace decide whether a message is locked: the SDK settles nothing whose lock has ended by this machine's clock.

    If this machine's clock is ahead by more than a lock lasts, the SDK would never settle anything.
    """
    until = getattr(message, "locked_until_utc", None)
    if until is None or until > datetime.now(UTC):
        yield
        return
    message._expiry = datetime.max.replace(tzinfo=UTC)
    try:
        yield
    finally:
        message._expiry = until


@contextlib.contextmanager
def confirmed(receiver: Any, message: Any) -> Iterator[None]:
    """Settle so that the call returns only once the namespace has confirmed it.

    Versions of the SDK before 7.15 wait for no answer on the link, and treat a settlement that was lost with the link as done; a settlement
    by lock token, which they use for deferred messages, has an answer.
    """
    if hasattr(receiver, "_await_settlement_outcome") or message._is_deferred_message:
        yield
        return
    message._is_deferred_message = True
    try:
        yield
    finally:
        message._is_deferred_message = False


def without_session_clock(receiver: Any) -> None:
    """As `without_lock_check` for the session that a receiver reads, until its lock is renewed: the namespace detaches a link whose lock is lost."""
    session = getattr(receiver, "session", None)
    if session is not None:
        session._locked_until_utc = None


# A lock that has ended by this machine's clock counts as a short one. Service Bus has locks from five seconds to five minutes.
_SHORT_LOCK_SECONDS = 10.0
# A clock that is behind makes a lock look longer; renewing a session this often is cheap.
_LONGEST_SESSION_SECONDS = 30.0
_LEAST_RENEW_SECONDS = 0.3


def renew_seconds(until: datetime, enqueued: datetime | None) -> float:
    """The number of seconds after which to renew a lock, independent of this machine's clock.

    Args:
        until: its end by the namespace's clock.
        enqueued: when its message was enqueued there, before which its lock cannot have begun; None for a session's lock.
    """
    left = (until - datetime.now(UTC)).total_seconds()
    if left <= 0:
        left = _SHORT_LOCK_SECONDS
    if enqueued is not None:
        left = min(left, (until - enqueued).total_seconds())
    else:
        left = min(left, _LONGEST_SESSION_SECONDS)
    return max(_LEAST_RENEW_SECONDS, left / 2)
