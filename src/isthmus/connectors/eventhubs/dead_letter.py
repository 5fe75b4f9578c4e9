"""The event hub for messages that are set aside at a source.

What it is: a link to it, the events of such messages with the reason in application properties, and which of them the hub has accepted. What
it is not: the checkpoint: it passes a message that is set aside only after the acceptance of its copy (`source`).

Invariants:
    I1. A position is reported as done only after the hub has accepted its event.
    I2. Unaccepted events are sent again over the next link.
    I3. `is_full` stops the source while many events are not accepted (`copy_limit`). The wait for outcomes begins also for events that the hub
        grants no credit for.
    I4. Positions of a partition that was created again are not reported any more: they name other events.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from isthmus.amqp import codec, section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.amqp.copy_limit import is_full
from isthmus.connectors.eventhubs.mapping import to_event
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.servicebus.port.end import MarkedSender
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["DeadLetterHub"]

_TEXT_CHARACTERS = 4096
NOBODYS = -1


class _Dead(NamedTuple):
    position: int
    payload: bytes


class DeadLetterHub:
    """The link, opened when it is first needed in each connection.

    Args:
        hub: its name.
        source: name of the event hub from which messages are read, as the connection reports it.
        mark: called when there is work.

    Attributes:
        error: why the link is unusable; the source is lost then.
    """

    def __init__(self, hub: str, source: Callable[[], str], mark: Callable[[], None]) -> None:
        self.path = hub
        self.error: IsthmusError | None = None
        self._source, self._mark = source, mark
        self._waiting: deque[_Dead] = deque()
        self._sent: dict[int, _Dead] = {}
        self._nbytes = 0  # of both
        self._sender: MarkedSender | None = None
        self._is_authorized = False

    @property
    def is_idle(self) -> bool:
        """Whether all events were accepted."""
        return not self._waiting and not self._sent

    @property
    def is_full(self) -> bool:
        """Whether so many events are not accepted that the source must deliver nothing more."""
        return is_full(len(self._waiting) + len(self._sent), self._nbytes)

    @property
    def senders(self) -> tuple[MarkedSender, ...]:
        """The link, where there is one; its outcomes are awaited."""
        return () if self._sender is None else (self._sender,)

    def add(self, position: int, message: bytes, disposition: Disposition) -> None:
        """Adds a message to set aside."""
        origin = f"{self._source()}/{position >> PARTITION_SHIFT}/{position & (1 << PARTITION_SHIFT) - 1}"
        reasons = {
            DEAD_LETTER_REASON: disposition.reason[:_TEXT_CHARACTERS],
            DEAD_LETTER_DESCRIPTION: disposition.description[:_TEXT_CHARACTERS],
            DEAD_LETTER_PLACE: origin,
        }
        dead = _Dead(position, _with_properties(to_event(message).payload, reasons))
        self._nbytes += len(dead.payload)
        self._waiting.append(dead)
        self._mark()

    def serve(self, client: Client) -> list[int]:
        """Sends waiting events; returns the positions that are done."""
        if self._sender is None and (self._waiting or self._sent):
            self._begin(client)
        sender = self._sender
        if sender is None:
            return []
        self.error = self.error or sender.error
        done: list[int] = []
        while sender.outcomes:
            first, last, error = sender.outcomes.popleft()
            for ordinal in range(first, last + 1):
                dead = self._sent.pop(ordinal)
                if error is not None:
                    self._waiting.append(dead)
                    self.error = self.error or error
                    continue
                self._nbytes -= len(dead.payload)
                if dead.position != NOBODYS:
                    done.append(dead.position)
        while self._waiting and sender.sendable > 0 and self.error is None:
            dead = self._waiting.popleft()
            self._sent[sender.send((dead.payload,))] = dead
        if self._waiting and self.error is None:
            sender.wait.sent(time.monotonic())  # for credit
        return done

    def link_lost(self) -> None:
        """The connection or its link is lost: events without outcome are sent again over the next."""
        sender, self._sender = self._sender, None
        self.error = None
        self._is_authorized = False
        self._waiting.extendleft(self._sent[ordinal] for ordinal in sorted(self._sent, reverse=True))
        self._sent.clear()
        if sender is not None and sender.client.error is None:
            sender.close()

    def disown(self, partition: int) -> list[int]:
        """A partition was created again; returns the positions of its messages, which are sent nevertheless (I4)."""
        found: list[int] = []

        def without(dead: _Dead) -> _Dead:
            if dead.position >> PARTITION_SHIFT != partition:
                return dead
            found.append(dead.position)
            return dead._replace(position=NOBODYS)

        self._waiting = deque(map(without, self._waiting))
        self._sent = {ordinal: without(dead) for ordinal, dead in self._sent.items()}
        return found

    def forget(self) -> None:
        """The messages belong to another reader."""
        self._waiting.clear()
        self._sent.clear()
        self._nbytes = 0

    def _begin(self, client: Client) -> None:
        if self._is_authorized:
            return
        self._is_authorized = True
        try:
            reply = client.start_authorize(self.path)
            if reply is None:
                self._attach(client)
                return
        except IsthmusError as error:
            self.error = error
            return

        def on_answer() -> None:
            if not self._is_authorized:
                return
            try:
                client.finish_authorize(self.path, reply)
                self._attach(client)
            except IsthmusError as error:
                self.error = error
            self._mark()

        reply.when_done(on_answer)

    def _attach(self, client: Client) -> None:
        self._sender = MarkedSender(self._mark, client, self.path, ())
        self._mark()


def _with_properties(event: bytes, reasons: dict[str, str]) -> bytes:
    found = section.locate(event)
    start, end = found.application_properties
    pairs = [
        event[a:b]
        for a, _, b in section.map_items(event, found.application_properties)
        if codec.decode(event, a)[0] not in reasons
    ]
    pairs += [codec.encode(name) + codec.encode(text) for name, text in reasons.items()]
    body = b"".join(pairs)
    made = b"\0St\xd1%b%b%b" % ((len(body) + 4).to_bytes(4, "big"), (2 * len(pairs)).to_bytes(4, "big"), body)
    if not end:
        start = end = max(found.header[1], found.message_annotations[1], found.properties[1])
    return event[:start] + made + event[end:]
