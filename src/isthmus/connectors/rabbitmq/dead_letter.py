"""The queue for messages that are set aside at a RabbitMQ source.

What it is: the copies of such messages, with the reason in headers, published over a connection of their own, and which of them the broker has
confirmed. What it is not: the acknowledgement: the original is acknowledged after the confirm of its copy (`source`).
Specification: RabbitMQ documentation, "Publisher Confirms", "Blocked Connection Notifications".

The connection is opened for the first copy. RabbitMQ stops reading from a connection that publishes while the broker is short of memory or disk,
or faster than a queue accepts: over the consumer's own one no acknowledgement would be read any more, and its queue could not be emptied. A
consumer's connection is not read, either, while many messages wait here.

Invariants:
    I1. A delivery is reported as done only after the broker has confirmed its copy, and has not returned it; after a return, which
        precedes its confirm, none is.
    I2. Messages are kept only while they are neither settled nor released, and only where there is such a queue.
    I3. `is_full` stops the source while many copies are unconfirmed (`copy_limit`): more come only of messages that are with its owner.
    I4. Where no copy is confirmed for `OUTCOME_SECONDS`, and each further time for twice as long (`copy_limit`), the source is lost, unless the broker
        reported that it is blocked. As long as bytes of the copies still arrive there, the time does not begin.
"""

from __future__ import annotations

import math
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Noted
from isthmus.connectors.amqp.copy_limit import is_full, longer
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.option import BrokerOptions
from isthmus.connectors.rabbitmq.port.pool import CLOSE_SECONDS, BrokerPool, Request
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import NO_ROUTE, ClosedByBrokerError
from isthmus.connectors.rabbitmq.protocol.property import Properties
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.servicebus.port.outcome_wait import OutcomeWait
from isthmus.errors import EntityNotFoundError, IsthmusError, OperationTimeoutError, ServerBusyError

__all__ = [
    "DEAD_CHANNEL",
    "DESCRIPTION_HEADER",
    "NO_PLACE",
    "REASON_HEADER",
    "SOURCE_HEADER",
    "DeadLetters",
]

NO_PLACE = (
    "name a queue for dead_letters at the source (dead_letter_queue of a task), write dead_letter_exchange=true where the queue has one, or let "
    "refusals block"
)

DEAD_CHANNEL = 2
"""The channel of the source's connection on which an opening queries whether the queue exists."""
REASON_HEADER = "isthmus-dead-letter-reason"
DESCRIPTION_HEADER = "isthmus-dead-letter-description"
SOURCE_HEADER = "isthmus-dead-letter-source"
# One frame contains all properties.
_DESCRIPTION_CHARACTERS = 4096
_FRAME_OVERHEAD = 64
_CHANNEL = 1


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


class _Copy(NamedTuple):
    """A copy that is not published yet."""

    tag: int
    properties: Properties
    body: bytes
    origin: str
    disposition: Disposition
    nbytes: int


class DeadLetters:
    """The publisher of one source.

    Args:
        options: of the source.
        broker: how to reach the broker.
        pool: makes the connection, and serves it.
        report: called with the delivery tags whose copies are confirmed, or with the error for which none is.

    Attributes:
        blocked_by: why the broker accepts no copies, as it reported; empty: it accepts them.
    """

    def __init__(
        self,
        options: DeadLetterOptions,
        broker: BrokerOptions,
        pool: BrokerPool,
        report: Callable[[Sequence[int] | IsthmusError], None],
    ) -> None:
        self._options, self._broker, self._pool, self._report = options, broker, pool, report
        self._queue = options.dead_letters
        self._kept: dict[int, bytes] = {}
        self._unpublished: deque[_Copy] = deque()
        self._waiting: dict[
            int, tuple[int, int]
        ] = {}  # delivery tag at the source and size, by number of the publication
        self._nbytes = 0  # of both
        self._reported_block = ""
        self._seconds = 0.0  # the next wait for confirms; 0: `OUTCOME_SECONDS`
        self._leave_by = math.inf  # the source is closed; until then it waits for the confirms
        self._forget_link()

    def _forget_link(self) -> None:
        self._request: Request | None = None
        self._connection: Connection | None = None
        self._wait: OutcomeWait | None = None
        self._number = 0
        self._has_failed = False  # it is unknown which copy was returned: no confirm counts any more
        self.blocked_by = ""

    @property
    def is_waiting(self) -> bool:
        """Whether confirms are outstanding."""
        return bool(self._waiting or self._unpublished) and not self._has_failed

    def may_come(self, outstanding: int) -> bool:
        """Whether copies are unconfirmed, or messages that are with the source's owner may have to be set aside: a source that reports the end of
        what exists would be closed, and what becomes of them would not be known.
        """
        return bool(self._queue) and (outstanding > 0 or self.is_waiting)

    @property
    def is_full(self) -> bool:
        """Whether so many copies are unconfirmed that the source must deliver nothing more."""
        return is_full(len(self._waiting) + len(self._unpublished), self._nbytes)

    @property
    def due(self) -> float:
        """When `check` has to be called; infinite where no confirm is awaited."""
        return math.inf if self._wait is None or self.blocked_by or self._has_failed else self._wait.due

    def begin(self, connection: Connection) -> None:
        """Queries over the source's connection whether the queue exists."""
        if self._queue:
            connection.write(wire.method(DEAD_CHANNEL, M.CHANNEL_OPEN, b"\0"))
            connection.write(wire.declare_passive(DEAD_CHANNEL, self._queue))

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

    def set_aside(self, entries: Sequence[Aside], disposition: Disposition) -> None:
        """Publishes copies of messages; one that cannot be made fails the source. A message without tag is redelivered."""
        for entry in entries:
            if entry.tag:
                self._add(entry, disposition)
            else:
                self._kept.pop(entry.position, None)
        if self._has_failed:
            return  # the source is lost
        if self._connection is not None and self._connection.error is None:
            self._publish(self._connection)
        elif self._unpublished and self._request is None:
            self._open()

    def _add(self, entry: Aside, disposition: Disposition) -> None:
        try:
            record = to_record(self._kept.pop(entry.position), self._options.username)
            properties = props.read(record.properties)
        except (CodecError, table.TableError, KeyError, struct.error) as error:
            self._fail(CodecError(f"queue '{self._options.queue}': a message cannot be set aside: {error}"))
            return
        origin = self._options.origin_of(entry.position)
        nbytes = len(record.body) + len(record.properties)
        self._unpublished.append(_Copy(entry.tag, properties, record.body, origin, disposition, nbytes))
        self._nbytes += nbytes

    def _publish(self, connection: Connection) -> None:
        """Publishes what waits for it."""
        frame_bytes = connection.frame_bytes
        while self._unpublished:
            copy = self._unpublished.popleft()
            self._number += 1
            self._waiting[self._number] = copy.tag, copy.nbytes
            connection.write(wire.publish_method(_CHANNEL, "", self._queue))
            properties = _properties(copy, frame_bytes - _FRAME_OVERHEAD)
            connection.write_all(wire.content_frames(_CHANNEL, properties, copy.body, frame_bytes))
        if self._wait is not None and self._waiting:
            self._wait.sent(time.monotonic())

    def check(self, now: float) -> None:
        """Fails the source where no copy was confirmed for too long (I4)."""
        wait = self._wait
        if wait is not None and now >= self.due and not wait.progresses(now) and wait.is_over(now):
            hint = "check whether the broker can store there"
            text = f"queue '{self._queue}': no confirm of dead letters for {wait.seconds:g} s; {hint}"
            self._seconds = longer(wait.seconds)
            self._fail(OperationTimeoutError(text))

    def news(self) -> list[Noted]:
        """The note for the operator, where it has changed."""
        if self.blocked_by == self._reported_block:
            return []
        self._reported_block = self.blocked_by
        return [Noted(self.blocked_by)]

    # ---- the connection

    def _open(self) -> None:
        if self._connection is not None:
            self._pool.drop(self._connection)  # it is lost
            self._forget_link()
        self._request = self._pool.connect(self, self._broker)

    def on_connected(self, connection: Connection) -> None:
        """The connection is open."""
        self._request = None
        self._connection = connection
        now = time.monotonic()
        if now >= self._leave_by:
            self.lost()  # the originals are redelivered already
            return
        self._wait = OutcomeWait(connection, self._seconds)
        connection.user = self
        connection.write(wire.method(_CHANNEL, M.CHANNEL_OPEN, b"\0"))
        connection.write(wire.method(_CHANNEL, M.CONFIRM_SELECT, b"\0"))
        self._publish(connection)
        connection.flush()
        if self._leave_by < math.inf:
            self._pool.leave(connection, now)

    def on_closed(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made. Without copies that wait for it a later copy opens another one."""
        self._request = None
        if self.is_waiting:
            self._fail(error)

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        if which == M.CONNECTION_BLOCKED:
            reason, _ = wire.short_at(arguments, 0)
            self.blocked_by = f"queue '{self._queue}': RabbitMQ accepts no dead letters: {reason}"
            self._report(())
        elif which == M.CONNECTION_UNBLOCKED:
            self.blocked_by = ""
            self._answered()
            self._report(())
        elif which in (M.BASIC_ACK, M.BASIC_NACK) and not self._has_failed:
            number, bits = struct.unpack_from(">QB", arguments)
            if which == M.BASIC_NACK:
                hint = "RabbitMQ refused one; check whether it is full"
                self._fail(ServerBusyError(f"queue '{self._queue}' accepts no dead letters: {hint}"))
            else:
                self._confirmed(number, multiple=bool(bits & 1))

    def _confirmed(self, number: int, *, multiple: bool) -> None:
        numbers = [each for each in self._waiting if each <= number] if multiple else [number]
        found = [self._waiting.pop(each) for each in numbers if each in self._waiting]
        self._nbytes -= sum(nbytes for _, nbytes in found)
        self._seconds = 0.0
        self._answered()
        self._report([tag for tag, _ in found if tag])
        if self._leave_by < math.inf and not self.is_waiting:
            self.lost()

    def _answered(self) -> None:
        if self._wait is not None:
            self._wait.answered(time.monotonic(), is_missing=bool(self._waiting))

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A copy was returned: the queue no longer exists."""
        code, text = wire.read_close(content.arguments)
        if code == NO_ROUTE:
            self._fail(EntityNotFoundError(self._queue))
        else:
            self._fail(ClosedByBrokerError("", place=f"queue '{self._queue}'", reply_code=code, reply_text=text))

    def _fail(self, error: IsthmusError) -> None:
        self._has_failed = True
        self._report(error)

    # ---- the end

    def detach(self) -> None:
        """The channel of the deliveries is closed: their originals are redelivered, and set aside again."""
        self._nbytes -= sum(copy.nbytes for copy in self._unpublished)
        self._unpublished.clear()
        self._waiting = {number: (0, nbytes) for number, (_, nbytes) in self._waiting.items()}

    def leave(self) -> None:
        """The source is closed; it waits for the confirms as long as the pool keeps connections that leave."""
        now = time.monotonic()
        self._leave_by = now + CLOSE_SECONDS
        if not self.is_waiting:
            self.lost()
        elif self._connection is not None:
            self._pool.leave(self._connection, now)

    def lost(self) -> None:
        """The source is lost, or has ended: originals without a confirmed copy are redelivered."""
        request, connection, is_blocked = self._request, self._connection, bool(self.blocked_by)
        self._unpublished.clear()
        self._waiting.clear()
        self._nbytes = 0
        self._forget_link()
        if request is not None:
            request.end = None
        if connection is None:
            return
        connection.user = None
        if is_blocked or connection.error is not None:
            self._pool.drop(connection)
            return
        connection.write(wire.close_method(0))
        connection.flush()
        self._pool.leave(connection, time.monotonic())


def _properties(copy: _Copy, most_bytes: int) -> bytes:
    """The properties of a copy, with as much of the reason as fits one frame. A message that is set aside must not expire."""
    reasons = (
        (REASON_HEADER, copy.disposition.reason),
        (SOURCE_HEADER, copy.origin),
        (DESCRIPTION_HEADER, copy.disposition.description[:_DESCRIPTION_CHARACTERS]),
    )
    own = [each for each in copy.properties.headers if each[0] not in {name for name, _ in reasons}]
    made = b""
    for count in (3, 2, 0):
        fields = [*own, *((name, *table.field_of(text)) for name, text in reasons[:count])]
        made = props.write(copy.properties._replace(headers=tuple(fields), expiration=None))
        if len(made) <= most_bytes:
            break
    return made
