"""The links of one connection: the handler of each, and their ends.

What it is: the dispatch of links' events to their handlers, and the detach of a link from either side, for any reason. What it is not: the
decision what a link is attached to (`attachment`), any link's work (`isthmus.broker.link`), or the frames that wait for outcomes
(`isthmus.broker.link.departure`).
Spec: docs/explanation/protocol.md, Links.

Invariants:
    I1. Every refusal of a link has the service's condition, and writes one line to the log.
    I2. A link whose entity is disabled or deleted, whose token permits it no longer, or that was idle for as long as the namespace allows, is
        detached.
    I3. The end of a link or session is sent after its outstanding outcomes (`isthmus.broker.link.departure`).
    I4. While nothing more is taken, no message and no request reaches a link; the client's settlements do.
    I5. A message or a settlement that a client sent before it knew that this side has ended the link is reported with its state (`on_lost`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from isthmus.amqp import (
    CreditChanged,
    Disposed,
    Link,
    LinkAttaching,
    LinkDetached,
    Role,
    SessionBegun,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.performative import Source, Target
from isthmus.broker.connection.early_access import EarlyAccess
from isthmus.broker.connection.idle import IdleWatch
from isthmus.broker.link.condition import amqp_error, refusal
from isthmus.broker.link.departure import Departures
from isthmus.broker.link.handler import LinkHandler, Rounds
from isthmus.broker.link.request import Replies
from isthmus.broker.link.session_attach import SessionWait
from isthmus.broker.security.access import Access
from isthmus.errors import IsthmusError, UnauthorizedError

__all__ = ["LinkTable", "address_of"]

_log = logging.getLogger(__name__)

# How long a client whose connection is ended has to read messages that were deleted for it.
_LAST_SECONDS = 10.0


class LinkTable:
    """The links of one connection.

    Args:
        name: address of the client, for the log.
        early: the limits before the client's first token.
        idle: finds links without activity.
        rounds: of the queues that links receive from.
        touch: schedules a flush at the end of the loop's iteration.

    Attributes:
        attach: decides about a link that the client wants, or raises IsthmusError.
        on_lost: called with the state of a message or settlement that nobody takes or answers (I5).
        handlers: the handler of each link.
        waits: links that wait for a session.
        replies: of `handlers`, those on which replies of nodes go to the client.
        departures: the ends that are not sent yet.
        is_taking_large: whether parts of a large message are arriving.
        takes_no_more: whether messages and requests are ignored (I4).
        is_over: whether the connection has ended.
    """

    attach: Callable[[Link], None]
    on_lost: Callable[[Any], None]

    def __init__(
        self,
        name: str,
        early: EarlyAccess,
        idle: IdleWatch,
        rounds: Rounds,
        touch: Callable[[], None],
    ) -> None:
        self.handlers: dict[Link, LinkHandler] = {}
        self.waits: dict[Link, SessionWait] = {}
        self.replies: dict[Link, Replies] = {}
        self.departures = Departures(touch)
        self.is_taking_large = self.takes_no_more = self.is_over = False
        self._name = name
        self._early = early
        self._idle = idle
        self._rounds = rounds
        self._touch = touch

    # ---- events

    def on_session_begun(self, event: SessionBegun) -> None:
        """A session begins."""
        self._early.begin_session()

    def on_attaching(self, event: LinkAttaching) -> None:
        """The client wants a link; the answer waits until an older link of its name is detached."""
        link = event.link
        if link.detached or link.amqp_session.ended:
            return  # the client ended it in the same read
        self._early.attach_link()
        if not self.departures.after(link, lambda: self._answer_late(link)):
            self._answer_attach(link)

    def on_transfers(self, event: Transfers) -> None:
        """Deliveries came."""
        handler = self.handlers.get(event.link)
        self._early.request(len(event.payloads))
        if handler is None or not event.payloads:
            self.on_lost(event.state)
        elif not self.takes_no_more:
            handler.on_transfers(event)

    def on_parts(self, event: TransferParts) -> None:
        """Parts of a large message came."""
        handler = self.handlers.get(event.link)
        self.is_taking_large = not event.is_last
        if handler is None:
            self.on_lost(event.state)
        elif not self.takes_no_more:
            handler.on_parts(event)

    def on_disposed(self, event: Disposed) -> None:
        """The client disposed of deliveries."""
        handler = self.handlers.get(event.link)
        link = event.link
        is_ended_here = link.detached and not link.peer_detached and not link.amqp_session.ended
        if handler is None or is_ended_here:
            self.on_lost(event.state)
        else:
            handler.on_disposed(event.first, event.last, event.state, event.settled)

    def on_credit(self, event: CreditChanged) -> None:
        """The client granted credit, or the session's window moved."""
        handler = self.handlers.get(event.link)
        if handler is not None:
            handler.on_credit()

    def on_detached(self, event: LinkDetached) -> None:
        """The client has ended a link."""
        if event.error is not None:
            _log.warning(
                "link detached: peer=%s address=%.300r condition=%s reason=%.300s",
                self._name, address_of(event.link), event.error.condition, event.error.description,
            )  # fmt: skip
        self.forget(event.link)

    def on_session_ended(self, event: SessionEnded) -> None:
        """The client has ended a session."""
        if event.error is not None:
            _log.warning("session ended: peer=%s condition=%s", self._name, event.error.condition)
        for link in [link for link in (*self.handlers, *self.waits) if link.amqp_session is event.amqp_session]:
            self.forget(link)
        self.departures.end(event.amqp_session)

    # ---- called by the connection

    def take_no_more(self) -> None:
        """The connection is about to be closed from this side."""
        self.takes_no_more = True
        for handler in self.handlers.values():
            handler.takes_no_more = True

    def writable(self) -> None:
        """The wire takes bytes again."""
        for handler in list(self.handlers.values()):
            handler.on_writable()

    def tick(self, now: float) -> None:
        """Runs the links' timers, and detaches those whose entity was deleted or disabled."""
        for link, handler in list(self.handlers.items()):
            try:
                handler.check_open()
            except IsthmusError as error:
                self.drop(link, error)
        for handler in list(self.handlers.values()):
            handler.on_tick(now)

    def end_idle(self, now: float) -> None:
        """Detaches the links that have been idle for too long."""
        if self._idle.is_due(now):
            for link, error in self._idle.overdue(self.handlers, now):
                self.drop(link, error)

    def end_unauthorised(self, access: Access, reason: str) -> None:
        """Detaches the links that no token permits any more."""
        for link, handler in list(self.handlers.items()):
            if not handler.is_permitted(access):
                self.drop(link, UnauthorizedError(reason))

    @property
    def owes(self) -> bool:
        """Whether outcomes of accepted messages are still to be sent."""
        return any(each.owes for each in self.handlers.values())

    # ---- answers and ends

    def refuse(self, link: Link, error: IsthmusError) -> None:
        """Answers an attach with a refusal, and logs it."""
        _, condition, text = refusal(error)
        _log.warning(
            "attach refused: peer=%s address=%.300r condition=%s reason=%.300s",
            self._name, address_of(link), condition, text,
        )  # fmt: skip
        link.refuse(amqp_error(error))

    def drop(self, link: Link, error: IsthmusError) -> None:
        """Detaches a link from this side, once everything queued on it has been sent."""
        handler = self.handlers.get(link)
        if handler is None:
            self._drop(link, error)
        else:
            handler.when_sent(lambda: self._drop(link, error))

    def forget(self, link: Link) -> None:
        """A link has ended."""
        wait = self.waits.pop(link, None)
        if wait is not None:
            wait.cancel()
        handler = self.handlers.pop(link, None)
        self.replies.pop(link, None)
        self._idle.forget(link)
        self.is_taking_large = False
        if handler is not None:
            handler.close()
            handler.withdraw(self._rounds)
        self.departures.detach(link, None if handler is None else handler.owed)

    def forget_all(self) -> None:
        """The connection ends, and all links with it."""
        for link in (*self.handlers, *self.waits):
            self.forget(link)

    def leave(self, run: Callable[[], None], call_later: Callable[[float, Callable[[], None]], object]) -> None:
        """This side ends the connection: ends all links, those last that still send messages that were deleted for the client.

        Args:
            run: called when their outstanding outcomes have been sent.
            call_later: calls a function after so many seconds.
        """
        is_over = False

        def over() -> None:
            nonlocal is_over
            if not is_over and not self.is_over:
                is_over = True
                self.forget_all()
                self.departures.when_empty(run)

        def sent_all(link: Link) -> None:
            self.forget(link)
            if not self.handlers:
                over()

        for link in list(self.waits):
            self.forget(link)
        for link, handler in list(self.handlers.items()):
            link.drop_partial()
            handler.when_sent(partial(sent_all, link))
        if not self.handlers:
            over()
        elif not self.is_over:
            call_later(_LAST_SECONDS, over)

    def release(self) -> None:
        """The connection has ended: drops the references to it."""
        self.is_over = True
        self.departures.clear()
        self._touch = _nothing
        self.attach = self.on_lost = _refuse_all

    def _drop(self, link: Link, error: IsthmusError) -> None:
        if not link.detached:
            _, condition, text = refusal(error)
            _log.warning(
                "link detached: peer=%s node=%.300r condition=%s reason=%.300s",
                self._name, address_of(link), condition, text,
            )  # fmt: skip
            link.begin_detach(amqp_error(error))
        self.forget(link)
        self._touch()

    def _answer_late(self, link: Link) -> None:
        self._answer_attach(link)
        handler = self.handlers.get(link)
        if handler is not None:  # credit that the client granted meanwhile reached no handler
            handler.on_credit()

    def _answer_attach(self, link: Link) -> None:
        if self.is_over or link.detached or link.amqp_session.ended:
            return  # while it waited for an older link of its name to be detached
        try:
            self.attach(link)
        except IsthmusError as error:
            self.refuse(link, error)


def _nothing() -> None:
    """Nobody is told."""


def _refuse_all(what: Any) -> None:
    """No link is attached any more, and nobody is told of what is lost."""


def address_of(link: Link) -> Any:
    """The address that the client wants: the target of its sender, the source of its receiver."""
    terminus = link.target if link.role is Role.RECEIVER else link.source
    return terminus.address if isinstance(terminus, Source | Target) else None
