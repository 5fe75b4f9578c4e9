"""The ends of links, AMQP sessions and a connection: each is sent after the outcomes of the deliveries before it.

What it is: the number of a link's outstanding outcomes (`Owed`), because commits are asynchronous, and the Detach, End and
Close frames that wait for them (`Departures`). What it is not: the decision that something ends (`peer`), nor the frames
themselves (`isthmus.amqp`). Pure: nothing here reads a clock or a socket.
Spec: OASIS AMQP 1.0 part 2, sections 2.4.3, 2.5.4, 2.6.6: no frame of a link, session or connection may follow its end, so an
outcome after it does not reach the client.

Invariants:
    I1. Detach, End and Close are sent after every outstanding outcome of their link, session or connection.
    I2. Without outstanding outcomes they are sent at once.
    I3. This holds whichever side ends the link, and for any reason.
    I4. A link that is attached under the name of one whose Detach is not sent yet waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.amqp import AmqpSession, Link

__all__ = ["Departures", "Owed"]


def _nothing() -> None:
    """Nobody is told."""


class Owed:
    """Outcomes of one link that wait for a commit.

    Attributes:
        count: how many.
    """

    __slots__ = ("_on_none", "count")

    def __init__(self) -> None:
        self.count = 0
        self._on_none: Callable[[], None] | None = None

    def add(self) -> None:
        """Counts one more."""
        self.count += 1

    def paid(self) -> None:
        """One of them was sent."""
        self.count -= 1
        if self.count <= 0 and self._on_none is not None:
            run, self._on_none = self._on_none, None
            run()

    def when_none(self, run: Callable[[], None]) -> None:
        """Calls once, as soon as none is outstanding; a later call replaces an earlier one."""
        if self.count <= 0:
            run()
        else:
            self._on_none = run


class Departures:
    """The ends of one connection that are not sent yet.

    Args:
        touch: schedules a flush at the end of the loop's iteration.
    """

    def __init__(self, touch: Callable[[], None]) -> None:
        self._touch = touch
        self._links: dict[Link, Owed] = {}
        self._sessions: list[AmqpSession] = []
        self._waiting: list[tuple[Link, Callable[[], None]]] = []
        self._on_empty: Callable[[], None] | None = None

    def detach(self, link: Link, owed: Owed | None) -> None:
        """A link has ended; its Detach, if there is one to send, is sent after its outstanding outcomes."""
        if link in self._links:
            return  # it waits already; now the other side has ended it, too
        if owed is None or owed.count <= 0:
            link.finish_detach()
        else:
            self._links[link] = owed
            owed.when_none(lambda: self._left(link))

    def end(self, amqp_session: AmqpSession) -> None:
        """A session has ended; all of its links have been passed to `detach`."""
        if any(link.amqp_session is amqp_session for link in self._links):
            self._sessions.append(amqp_session)
        else:
            amqp_session.finish_end()

    def when_empty(self, run: Callable[[], None]) -> None:
        """Call once nothing waits; all links have been passed to `detach`."""
        if self._links:
            self._on_empty = run
        else:
            run()

    def after(self, link: Link, run: Callable[[], None]) -> bool:
        """Whether the Detach of a link of the same name is not sent yet; then `run` is called afterwards (I4)."""
        for each in self._links:
            if _is_same(each, link):
                self._waiting.append((link, run))
                return True
        return False

    def clear(self) -> None:
        """The connection is lost: nothing is sent or called any more."""
        self._touch = _nothing
        for owed in self._links.values():
            owed.when_none(_nothing)
        self._links.clear()
        self._sessions.clear()
        self._waiting.clear()
        self._on_empty = None

    def _left(self, link: Link) -> None:
        if self._links.pop(link, None) is None:
            return
        link.finish_detach()
        for amqp_session in [each for each in self._sessions if each is link.amqp_session]:
            self._sessions.remove(amqp_session)
            self.end(amqp_session)
        waiting = [entry for entry in self._waiting if _is_same(entry[0], link)]
        self._waiting = [entry for entry in self._waiting if not _is_same(entry[0], link)]
        for _, run in waiting:
            run()
        if not self._links and self._on_empty is not None:
            run, self._on_empty = self._on_empty, None
            run()
        self._touch()


def _is_same(one: Link, other: Link) -> bool:
    """Whether two links have one name on one session: the two directions have names of their own."""
    return one.name == other.name and one.role is other.role and one.amqp_session is other.amqp_session
