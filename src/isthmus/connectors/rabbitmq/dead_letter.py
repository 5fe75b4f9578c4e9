"""The queue for messages that are set aside at a RabbitMQ source.

What it is: the copies of such messages, with the reason in headers, published on a channel of their own, and which of them the broker has
confirmed. What it is not: the acknowledgement: the original is acknowledged after the confirm of its copy (`source`).

Invariants:
    I1. A delivery is reported as done only after the broker has confirmed its copy, and has not returned it; after a return, which
        precedes its confirm, none is.
    I2. Messages are kept only while they are neither settled nor released, and only where there is such a queue.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection
from isthmus.connectors.rabbitmq.protocol.error import NO_ROUTE, ClosedByBrokerError
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.errors import EntityNotFoundError, IsthmusError, ServerBusyError

__all__ = ["DEAD_CHANNEL", "NO_PLACE", "DESCRIPTION_HEADER", "REASON_HEADER", "SOURCE_HEADER", "DeadLetters"]

NO_PLACE = (
    "name a queue for dead_letters at the source (dead_letter_queue of a task), write dead_letter_exchange=true where the queue has one, or let "
    "refusals block"
)

DEAD_CHANNEL = 2
REASON_HEADER = "isthmus-dead-letter-reason"
DESCRIPTION_HEADER = "isthmus-dead-letter-description"
SOURCE_HEADER = "isthmus-dead-letter-source"
# One frame contains all properties.
_DESCRIPTION_CHARACTERS = 4096
_FRAME_OVERHEAD = 64


class DeadLetterOptions(Protocol):
    """The dead-letter options of a source."""

    @property
    def queue(self) -> str:
        """The queue that is read."""
        ...

    @property
    def dead_letters(self) -> str:
        """The queue for messages that are set aside; empty: none."""
        ...

    @property
    def username(self) -> str:
        """The user who publishes them."""
        ...

    def origin_of(self, position: int) -> str:
        """The origin of the message of a position, for the copy's header."""
        ...


class Aside(Protocol):
    """A message to set aside: its position, and its tag for `on_method`, which is not 0."""

    @property
    def position(self) -> int:
        """The source's position."""
        ...

    @property
    def tag(self) -> int:
        """The tag of its delivery; 0: it is redelivered."""
        ...


class DeadLetters:
    """The publisher of one source.

    Args:
        options: of the source.
    """

    def __init__(self, options: DeadLetterOptions) -> None:
        self._options = options
        self._queue = options.dead_letters
        self._kept: dict[int, bytes] = {}
        self._waiting: dict[int, int] = {}  # delivery tags at the source, by number of the publication
        self._number = 0
        self._has_failed = False  # it is unknown which copy was returned: no confirm counts any more

    @property
    def is_waiting(self) -> bool:
        """Whether confirms are outstanding."""
        return bool(self._waiting) and not self._has_failed

    def begin(self, connection: Connection) -> None:
        """Opens the channel."""
        self._has_failed = False
        if self._queue:
            connection.write(wire.method(DEAD_CHANNEL, M.CHANNEL_OPEN, b"\0"))
            connection.write(wire.declare_passive(DEAD_CHANNEL, self._queue))
            connection.write(wire.method(DEAD_CHANNEL, M.CONFIRM_SELECT, b"\0"))

    def keep(self, position: int, payload: bytes) -> None:
        """A message was delivered."""
        if self._queue:
            self._kept[position] = payload

    def forget(self, first: int, last: int) -> None:
        """Messages were settled or released."""
        if not self._kept:
            return
        if last - first < len(self._kept):
            for position in range(first, last + 1):
                self._kept.pop(position, None)
        else:
            for position in [each for each in self._kept if first <= each <= last]:
                del self._kept[position]

    def set_aside(
        self, connection: Connection | None, entries: Sequence[Aside], disposition: Disposition
    ) -> IsthmusError | None:
        """Publishes copies of messages; returns an error where one cannot be made. A message without tag is redelivered."""
        error = None
        for entry in entries:
            if connection is None or not entry.tag:
                self._kept.pop(entry.position, None)
            else:
                error = self._add(connection, entry, disposition) or error
        return error

    def _add(self, connection: Connection, entry: Aside, disposition: Disposition) -> IsthmusError | None:
        try:
            record = to_record(self._kept.pop(entry.position), self._options.username)
            origin = self._options.origin_of(entry.position)
            most_bytes = connection.frame_bytes - _FRAME_OVERHEAD
            properties = self._properties(record.properties, disposition, origin, most_bytes)
        except (CodecError, table.TableError, KeyError, struct.error) as error:
            return CodecError(f"queue '{self._options.queue}': a message cannot be set aside: {error}")
        self._number += 1
        self._waiting[self._number] = entry.tag
        connection.write(wire.publish_method(DEAD_CHANNEL, "", self._queue))
        connection.write_all(wire.content_frames(DEAD_CHANNEL, properties, record.body, connection.frame_bytes))
        return None

    def _properties(self, raw: bytes, disposition: Disposition, origin: str, most_bytes: int) -> bytes:
        """The properties of a copy, with as much of the reason as fits one frame. A message that is set aside must not expire."""
        found = props.read(raw)
        reasons = (
            (REASON_HEADER, disposition.reason),
            (SOURCE_HEADER, origin),
            (DESCRIPTION_HEADER, disposition.description[:_DESCRIPTION_CHARACTERS]),
        )
        own = [each for each in found.headers if each[0] not in {name for name, _ in reasons}]
        made = b""
        for count in (3, 2, 0):
            fields = [*own, *((name, *table.field_of(text)) for name, text in reasons[:count])]
            made = props.write(found._replace(headers=tuple(fields), expiration=None))
            if len(made) <= most_bytes:
                break
        return made

    def on_method(self, which: tuple[int, int], arguments: bytes) -> Sequence[int] | IsthmusError:
        """Delivery tags at the source whose copies are confirmed, or the error for which none is."""
        if which not in (M.BASIC_ACK, M.BASIC_NACK) or self._has_failed:
            return ()
        number, bits = struct.unpack_from(">QB", arguments)
        if which == M.BASIC_NACK:
            self._has_failed = True
            return ServerBusyError(
                f"queue '{self._queue}' accepts no dead letters: RabbitMQ refused one; check whether it is full"
            )
        numbers = [each for each in self._waiting if each <= number] if bits & 1 else [number]
        tags = [self._waiting.pop(each) for each in numbers if each in self._waiting]
        return [tag for tag in tags if tag]

    def returned(self, arguments: bytes) -> IsthmusError:
        """A copy was returned: the queue no longer exists."""
        self._has_failed = True
        code, text = wire.read_close(arguments)
        if code == NO_ROUTE:
            return EntityNotFoundError(self._queue)
        return ClosedByBrokerError("", place=f"queue '{self._queue}'", reply_code=code, reply_text=text)

    def detach(self) -> None:
        """The channel of the deliveries is closed: their originals are redelivered, and set aside again."""
        self._waiting = dict.fromkeys(self._waiting, 0)

    def lost(self) -> None:
        """The connection is lost: originals without a confirmed copy are redelivered."""
        self._waiting.clear()
        self._number = 0
