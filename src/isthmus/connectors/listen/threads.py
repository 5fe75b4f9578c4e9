"""The thread of a listener's source: it opens the spool and the listener, reads the messages, and writes settlements.

What it is: the only code that uses the spool's reading side, and the requests of the loop's thread, under a lock. What it is not: the
port (`source`).

Invariants:
    I1. Nothing is read beyond the credit.
    I2. A settlement is on disk `SAVE_SECONDS` later, and at the end.
    I3. A message that is set aside is in the folder `set-aside` before it is settled.
    I4. A vault that does not answer delays no message: after the first read the secret is read again in another thread.
    I5. With `only_present` the end is reported only once all messages are settled.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.listen.door import Door, Read
from isthmus.connectors.listen.inbox import Inbox
from isthmus.connectors.listen.listener import enter
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.outgoing import Outgoing
from isthmus.connectors.secret import resolve
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.connectors.wrap.arrival import with_properties
from isthmus.errors import IsthmusError
from isthmus.message.name import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON

__all__ = ["ListenThread"]

SAVE_SECONDS = 0.1
# How soon a replaced secret is noticed.
SECRET_SECONDS = 60.0

StateEvent = SourceOpened | SourceLost | Exhausted


class ListenThread(threading.Thread):
    """Listens for one source.

    Args:
        options: of the source.
        read: parses a request into messages.
        wake: called when there are results.
        only_present: deliver only messages that exist when it is first opened.
        handshakes: whether Event Grid's subscriptions are confirmed.
    """

    def __init__(
        self, options: ListenOptions, read: Read, wake: Callable[[], None], *, only_present: bool, handshakes: bool
    ) -> None:
        super().__init__(name=f"listen-{options.entity}", daemon=True)
        self._options = options
        self._read = read
        self._wake = wake
        self._only_present = only_present
        self._handshakes = handshakes
        self._condition = threading.Condition()  # guards all that follows
        self._state_events: deque[StateEvent] = deque()
        self._messages: deque[tuple[int, bytes]] = deque()
        self._asked: deque[tuple[int, int, str, Disposition | None]] = deque()
        self._credit = 0
        self._wants_open = self._stops = self._has_news = False
        self._outgoing = Outgoing(SpoolFolder(options.spool))
        self._end = -1
        self._secret = ""
        self._secret_at = 0.0
        self.port = 0

    # ---- for the loop's thread

    def open(self) -> None:
        """Listens, or listens again."""
        with self._condition:
            self._wants_open = True
            self._condition.notify_all()
        if self.ident is None:
            self.start()

    def grant(self, credit: int) -> None:
        """Raises the credit by so many messages."""
        with self._condition:
            self._credit = credit
            self._has_news = True
            self._condition.notify_all()

    def take(self) -> tuple[list[StateEvent], list[tuple[int, bytes]]]:
        """The events to report, and messages within the credit."""
        with self._condition:
            messages = [self._messages.popleft() for _ in range(min(self._credit, len(self._messages)))]
            self._credit -= len(messages)
            state_events = [each for each in self._state_events if not (self._messages and isinstance(each, Exhausted))]
            self._state_events = deque(
                each for each in self._state_events if self._messages and isinstance(each, Exhausted)
            )
        return state_events, messages

    def ask(self, first: int, last: int, what: str, disposition: Disposition | None = None) -> None:
        """Requests `complete`, `release` or `set-aside` of positions."""
        with self._condition:
            self._asked.append((first, last, what, disposition))
            self._condition.notify_all()

    def stop(self) -> None:
        """Closes it."""
        with self._condition:
            self._stops = True
            self._condition.notify_all()

    # ---- the thread

    def run(self) -> None:
        """Listens until it is stopped."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._wants_open or self._stops)
                if self._stops:
                    return
                self._wants_open = False
            try:
                self._listen()
            except IsthmusError as error:
                self._report(SourceLost(str(error), not error.retryable))
            except Exception as error:  # noqa: BLE001 - the owner must be told of any error, or the route stalls
                self._report(SourceLost(f"listener '{self._options.entity}': {type(error).__name__}: {error}"))

    def _report(self, event: StateEvent) -> None:
        with self._condition:
            self._state_events.append(event)
        self._wake()

    def _listen(self) -> None:
        options = self._options
        self._renew_secret(time.monotonic())
        with contextlib.ExitStack() as stack:
            inbox = Inbox(options, self._on_news, lambda: self._outgoing.settled_records.front)
            stack.callback(inbox.close)
            number = inbox.open()
            outgoing = self._outgoing
            identity = outgoing.open(number)
            stack.callback(outgoing.save)
            stack.callback(self._serve_asked, outgoing)
            if self._only_present and self._end < 0:
                self._end = number
            door = Door(
                options,
                secret=lambda: self._secret,
                read=self._read,
                store=inbox,
                wall=time.time,
                handshakes=self._handshakes,
            )
            entry = enter(options, door)
            stack.callback(entry.leave)
            self.port = entry.port
            with self._condition:
                for position, _ in self._messages:
                    outgoing.release(position)
                self._messages.clear()
            self._report(SourceOpened(identity))
            self._carry(outgoing)

    def _on_news(self) -> None:
        with self._condition:
            self._has_news = True
            self._condition.notify_all()

    def _carry(self, outgoing: Outgoing) -> None:
        save_at = 0.0
        while True:
            with self._condition:
                timeout = SAVE_SECONDS if outgoing.settled_records.is_dirty else 1.0
                self._condition.wait_for(
                    lambda: self._stops or self._wants_open or self._asked or self._has_news, timeout
                )
                if self._stops or self._wants_open:
                    return
                self._has_news = False
                room = self._credit - len(self._messages)
            self._serve_asked(outgoing)
            if self._fill(outgoing, room):
                self._wake()
            now = time.monotonic()
            if now >= save_at:
                outgoing.save()
                save_at = now + SAVE_SECONDS
            self._renew_secret(now)

    def _fill(self, outgoing: Outgoing, room: int) -> bool:
        """Reads messages to deliver; returns whether there are events to report."""
        found: list[tuple[int, bytes]] = []
        is_over = False
        try:
            while len(found) < room:
                given = outgoing.next()
                if (
                    given is not None and 0 <= self._end < given[0]
                ):  # it is not one of the existing messages; the next opening delivers it
                    outgoing.release(given[0])
                    given = None
                    is_over = True
                if given is None:
                    is_over = is_over or self._end >= 0
                    break
                found.append(given)
        finally:
            with self._condition:
                self._messages.extend(found)  # those before an unreadable one, too
        if is_over and outgoing.positions(0, self._end):
            is_over = False  # one that cannot be set aside is delivered again (I5)
        with self._condition:
            if is_over and not any(isinstance(each, Exhausted) for each in self._state_events):
                self._state_events.append(Exhausted())
        return bool(found or is_over)

    def _serve_asked(self, outgoing: Outgoing) -> None:
        while True:
            with self._condition:
                if not self._asked:
                    return
                first, last, what, disposition = self._asked[0]
            positions = outgoing.positions(first, last)
            if what == "set-aside":
                self._set_aside(outgoing, positions, disposition or Disposition("dead-letter"))
            for position in positions:
                if what == "release":
                    outgoing.release(position)
                else:
                    outgoing.settle(position)
            with self._condition:
                self._asked.popleft()
                self._has_news = self._has_news or what == "release"

    def _set_aside(self, outgoing: Outgoing, positions: list[int], disposition: Disposition) -> None:
        now_ms = round(time.time() * 1000)
        reason = {DEAD_LETTER_REASON: disposition.reason, DEAD_LETTER_DESCRIPTION: disposition.description}
        records = [
            Record("", -1, now_ms, with_properties(payload, reason))
            for payload in map(outgoing.payload, positions)
            if payload is not None
        ]
        writer = SpoolWriter(self._options.spool / "set-aside")
        writer.open()
        try:
            writer.append(records)
            writer.sync()
        finally:
            writer.close()

    def _renew_secret(self, now: float) -> None:
        if not self._options.secret or now < self._secret_at:
            return
        self._secret_at = now + SECRET_SECONDS
        if not self._secret:
            self._secret = resolve(self._options.secret).reveal()
            return
        threading.Thread(target=self._reread_secret, name=f"secret-{self._options.entity}", daemon=True).start()

    def _reread_secret(self) -> None:
        with contextlib.suppress(IsthmusError):  # a vault or file is unreachable: the last secret is kept
            self._secret = resolve(self._options.secret).reveal()
