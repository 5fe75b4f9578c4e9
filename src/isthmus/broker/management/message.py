"""`$management` operations on messages: peek, schedule, cancel, renew, receive deferred, settle, delete.

What it is: requests converted to calls of the entity, results to reply bodies. What it is not: the semantics.
Spec: docs/explanation/protocol.md, Message, Management.

Invariants:
    I1. A message is deleted for a client only if its body can be read, and a reply can be sent; then its reply is not dropped.
    I2. A reply with messages begins only after all bodies in it have been read: one that breaks off would end its link, and with it the
        replies behind it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from isthmus.amqp import CodecError, section
from isthmus.amqp.types import Array, Int, Timestamp
from isthmus.broker.large import check_bodies
from isthmus.broker.link.condition import refusal
from isthmus.broker.link.request import Reply, Request, Respond, text_map
from isthmus.broker.management.session import linked_session, settling
from isthmus.entities import Acquired, Engine, Large, Payload
from isthmus.entities.port import MessageSource
from isthmus.errors import InvalidArgumentError, IsthmusError, LockLostError, MessageNotFoundError, NotAllowedError

__all__ = [
    "cancel_scheduled",
    "delete_batch",
    "peek",
    "receive_deferred",
    "renew_lock",
    "schedule",
    "update_disposition",
]

# The service's limit for a batch delete on the premium tier; also keeps the replies of a peek bounded.
_MESSAGES_LIMIT = 4000
# Bytes of messages in a reply to a peek; one message alone may be larger.
_REPLY_BYTES = 128 << 20
_TIMESTAMP, _LONG = 0x83, 0x81
_SCHEDULED = "x-opt-scheduled-enqueue-time"


def peek(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """peek-message."""
    start = request.field("from-sequence-number", int)
    count = _count(request.field("message-count", int))
    source = _peekable(engine, entity)
    session_id = request.field("session-id", str, optional=True)
    if session_id is None:
        session_id = linked_session(source, request)
    payloads = _bounded(source.peek(start, count, session_id))
    if payloads:
        reply = Reply(body={"messages": [{"message": payload} for payload in payloads]})
        _respond_readable(request, reply, payloads, respond)
    else:
        respond(Reply(204, "No messages were found."))


def schedule(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """schedule-message; in a transaction the reply contains the sequence numbers that the messages will have."""
    destination = engine.sender(entity)
    messages = []
    for item in request.field("messages", list):
        payload = item.get("message") if isinstance(item, dict) else None
        if not isinstance(payload, bytes):
            raise InvalidArgumentError("each of 'messages' must be a map with the binary 'message'")
        annotations = section.decode_map(payload, section.locate(payload).message_annotations)
        due = annotations.get(_SCHEDULED)
        if not isinstance(due, int) or isinstance(due, bool):
            raise InvalidArgumentError(f"a message to be scheduled lacks the annotation '{_SCHEDULED}'")
        messages.append((payload, int(due)))
    if not messages:
        raise InvalidArgumentError("'messages' is empty")
    sequences: list[int] = []

    def durable() -> None:
        respond(Reply(body={"sequence-numbers": Array(_LONG, sequences)}))

    schedule = (
        destination.schedule if request.transaction is None else partial(request.transaction.schedule, destination)
    )
    sequences.extend(schedule(messages, durable, _failed(respond)))


def cancel_scheduled(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """cancel-scheduled-message; in a transaction the reply is provisional until the discharge."""
    sequences = _numbers(request, "sequence-numbers")
    destination = engine.sender(entity)
    if request.transaction is not None:
        request.transaction.cancel_scheduled(destination, sequences)
        respond(Reply())
        return
    destination.cancel_scheduled(sequences, lambda: respond(Reply()), _failed(respond))


def renew_lock(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """renew-lock."""
    queue = engine.receiver(entity)
    if queue.sessions is not None:
        raise NotAllowedError("Messages of a session are locked with their session; renew its lock.")
    until = queue.renew(_tokens(request))
    if None in until:
        raise _lost()
    respond(Reply(body={"expirations": Array(_TIMESTAMP, [Timestamp(each or 0) for each in until])}))


def receive_deferred(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """receive-by-sequence-number."""
    sequences = _numbers(request, "sequence-numbers")
    lock = request.field("receiver-settle-mode", int, optional=True) != 0
    queue = settling(engine, entity, request)
    if lock:
        acquired = queue.receive_deferred(sequences)
        _respond_readable(
            request, _received(acquired), acquired.payloads, respond, lambda: queue.release(acquired.tags)
        )
        return
    desk = request.desk
    if not queue.has_large or desk is None:
        _delete_deferred(queue, sequences, request, respond)
        return
    locked = queue.receive_deferred(sequences)  # locked meanwhile: no other receiver gets them

    def checked(unreadable: IsthmusError | None) -> None:
        try:
            queue.release(locked.tags)
            if unreadable is None:
                _delete_deferred(settling(engine, entity, request), sequences, request, respond)
        except IsthmusError as error:
            _failed(respond)(error)
        else:
            if unreadable is not None:  # not raised: its traceback would keep the bodies until Python collects garbage
                _failed(respond)(unreadable)

    check_bodies(desk, [each.blob for each in locked.payloads if isinstance(each, Large)], checked)


def _respond_readable(
    request: Request,
    reply: Reply,
    payloads: Sequence[Payload],
    respond: Respond,
    give_back: Callable[[], object] = lambda: None,
) -> None:
    """Reply with messages, once the bodies of large ones have been read (I2); `give_back` is called where one cannot be."""
    bodies = [each.blob for each in payloads if isinstance(each, Large)]
    if not bodies or request.desk is None:
        respond(reply)
        return

    def checked(unreadable: IsthmusError | None) -> None:
        if unreadable is None:
            respond(reply)
            return
        with suppress(IsthmusError):  # the entity or the session has ended, and the locks with it
            give_back()
        _failed(respond)(unreadable)

    check_bodies(request.desk, bodies, checked)


def _delete_deferred(queue: MessageSource, sequences: list[int], request: Request, respond: Respond) -> None:
    """Delete deferred messages, and reply with them.

    Raises:
        NotAllowedError: no reply can be sent, and nothing was deleted.
    """
    if not request.can_reply():
        raise NotAllowedError("The client has no link on which the messages could be sent, or reads no replies on it.")
    box: list[Acquired] = []

    def durable() -> None:
        respond(_received(box[0]))

    box.append(queue.receive_deferred(sequences, lock=False, on_durable=durable, on_failed=_failed(respond)))


def update_disposition(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """update-disposition; in a transaction the reply is provisional until the discharge."""
    queue = settling(engine, entity, request)
    tokens = _tokens(request)
    status = request.field("disposition-status", str)
    properties = text_map(request.field("properties-to-modify", dict, optional=True)) or None
    settle: Callable[..., list[bool]]
    if status == "completed":
        settle = queue.complete
    elif status == "abandoned":
        settle = partial(queue.abandon, properties=properties)
    elif status in {"defered", "deferred"}:  # the service's own spelling has one r
        settle = partial(queue.defer, properties=properties)
    elif status == "suspended":
        reason = request.field("deadletter-reason", str, optional=True)
        description = request.field("deadletter-description", str, optional=True)
        settle = partial(queue.dead_letter, reason=reason, description=description, properties=properties)
        if request.transaction is not None and queue.dead_letters is None:
            raise NotAllowedError(f"'{entity}' has no dead-letter queue of its own; complete the message instead.")
    else:
        raise InvalidArgumentError(
            f"disposition-status is '{status[:32]}'; expected completed, abandoned, defered or suspended"
        )
    if request.transaction is not None:
        request.transaction.settle(queue, tokens, settle, lambda ending: None)
        respond(Reply())
        return
    flags: list[bool] = []

    def durable() -> None:
        if all(flags):
            respond(Reply())
        else:
            failed(_lost())

    failed = _failed(respond)
    flags.extend(settle(tokens, on_durable=durable, on_failed=failed))


def delete_batch(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """batch-delete-messages."""
    queue = engine.receiver(entity)
    if request.field("session-id", str, optional=True) is not None:
        queue = settling(engine, entity, request)
    count = _count(request.field("message-count", int))
    before_ms = request.field("enqueued-time-utc", int, optional=True)
    deleted: list[int] = []

    def durable() -> None:
        if deleted[0]:
            respond(Reply(body={"message-count": Int(deleted[0])}))
        else:
            error = MessageNotFoundError("No messages were found.")
            respond(Reply(204, str(error), None, refusal(error).condition))

    deleted.append(queue.delete_batch(count, None if before_ms is None else int(before_ms), durable, _failed(respond)))


def _peekable(engine: Engine, entity: str) -> Any:
    """The entity for a peek: also a topic, which has scheduled messages."""
    try:
        return engine.receiver(entity)
    except NotAllowedError:
        return engine.sender(entity)


def _received(acquired: Acquired) -> Reply:
    messages = []
    for tag, payload in zip(acquired.tags, acquired.payloads, strict=True):
        token = uuid.UUID(bytes_le=tag)
        locked = acquired.locked_until_ms > 0
        messages.append({"lock-token": token, "message": _with_lock_token(payload, token) if locked else payload})
    return Reply(body={"messages": messages})


def _bounded(payloads: list[Payload]) -> list[Payload]:
    """The first messages, as many as fit into a reply; a client that wants more peeks from the next one."""
    size = 0
    for place, payload in enumerate(payloads):
        size += len(payload)
        if place and size > _REPLY_BYTES:
            return payloads[:place]
    return payloads


def _with_lock_token(payload: Payload, token: uuid.UUID) -> Payload:
    """The message with its lock token among the delivery annotations, where one SDK looks for it."""
    if isinstance(payload, Large):
        return Large(_annotated(payload.front, token), payload.blob)
    return _annotated(payload, token)


def _annotated(payload: bytes, token: uuid.UUID) -> bytes:
    sections = section.locate(payload)
    start, end = sections.delivery_annotations
    if not end:
        start = end = sections.header[1]
    try:
        annotations = section.decode_map(payload, sections.delivery_annotations)
    except CodecError:  # the sender's own annotations cannot be read: they stay unchanged, and the token is in the reply beside the message
        return payload
    annotations["x-opt-lock-token"] = token
    return payload[:start] + section.encode_map_section(section.DELIVERY_ANNOTATIONS, annotations) + payload[end:]


def _failed(respond: Respond) -> Callable[[Exception], None]:
    def failed(error: Exception) -> None:
        status, condition, text = refusal(error)
        respond(Reply(status, text, None, condition))

    return failed


def _lost() -> LockLostError:
    return LockLostError(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed."
    )


def _count(value: int) -> int:
    if value <= 0:
        raise InvalidArgumentError(f"'message-count' is {value}; it must be positive")
    return min(value, _MESSAGES_LIMIT)


def _numbers(request: Request, name: str) -> list[int]:
    values = request.field(name, list)
    if not values or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise InvalidArgumentError(f"'{name}' must be a list of numbers and not empty")
    return [int(value) for value in values]


def _tokens(request: Request) -> list[bytes]:
    values = request.field("lock-tokens", list)
    if not values or not all(isinstance(value, uuid.UUID) for value in values):
        raise InvalidArgumentError("'lock-tokens' must be a list of uuid and not empty")
    return [value.bytes_le for value in values]
