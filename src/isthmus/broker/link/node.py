"""Links on which requests arrive at a `$cbs` or `$management` node.

What it is: each request is read, settled, handed to the node, and its reply is sent on the client's own link. What it is not:
any operation (`cbs`, `management`).
Spec: docs/explanation/protocol.md, Tokens, Management.

Invariants:
    I1. A request that can be read is accepted before it is answered: one SDK waits for that. One that cannot is rejected.
    I2. A reply without a link for it is dropped; a client without a reply link gets only the outcome of its request.
    I3. Replies that wait for credit have at most the size limit of a request together, plus one reply, and those that
        have messages that were deleted for the client. Beyond that no request is carried out, and its link is ended.
    I4. A request in a transaction that cannot take part is rejected and answered: some clients wait for the one, some for the
        other.
    I5. Where this side ends the links, requests that were taken are answered before: without the reply a client makes its change twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from isthmus.amqp import CodecError, Link, Transfers
from isthmus.amqp.performative import Rejected, TransactionalState
from isthmus.broker.large import LargeDesk
from isthmus.broker.link.condition import amqp_error, refusal
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.handler import NodeLink
from isthmus.broker.link.request import Replies, Reply, Request, Respond, Style, find_replies
from isthmus.entities import Transaction
from isthmus.errors import InvalidArgumentError, IsthmusError, NotAllowedError, QuotaExceededError

__all__ = ["Answer", "Requests"]

_log = logging.getLogger(__name__)

Answer = Callable[[Request, Respond], None]

# Requests that a client may have in flight on a link.
_CREDIT = 100


class _Client(Protocol):
    """The connection that a request came on."""

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        ...

    def replies(self) -> Iterable[Replies]:
        """The links on which replies go to the client."""
        ...

    def touch(self) -> None:
        """Sends queued bytes at the end of the loop's iteration."""
        ...

    @property
    def large(self) -> LargeDesk:
        """The handler of large messages."""
        ...


class Requests(NodeLink):
    """One link on which a client asks a node.

    Args:
        link: whose receiver we are, accepted.
        node: path of the node.
        style: how the node spells the properties of replies.
        answer: carries out a request.
        client: the connection.
        transactions: of the connection, if requests may take part in them.
    """

    def __init__(
        self,
        link: Link,
        node: str,
        style: Style,
        answer: Answer,
        client: _Client,
        transactions: Transactions | None = None,
    ) -> None:
        self.link = link
        self.node = node
        self._style = style
        self._answer = answer
        self._client = client
        self._transactions = transactions
        # By their identities, the requests that were taken, and the link on which the reply to each is expected.
        self._unanswered: dict[int, Replies | None] = {}
        # Called to end the link, once all requests that were taken are answered.
        self._on_answered_all: Callable[[], None] | None = None

    def open(self) -> None:
        """Grant the first credit."""
        self.link.grant(_CREDIT)

    def on_transfers(self, event: Transfers) -> None:
        """Answer requests."""
        for number, payload in enumerate(event.payloads):
            if self.link.detached or self._on_answered_all is not None:
                self._lose(event.state)  # as for the requests that arrive behind the end of the link
                return
            self._take(payload, (event.first_delivery_id + number) & 0xFFFFFFFF, event.settled, event.state)
        self.top_up()

    def on_credit(self) -> None:
        self.top_up()

    def when_sent(self, run: Callable[[], None]) -> None:
        if self._unanswered:
            self._on_answered_all = run
        else:
            run()

    def close(self) -> None:
        """The link is gone."""
        self._on_answered_all = None

    def top_up(self) -> None:
        """Grant credit again, once half of it is used up."""
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)

    def _take(self, payload: bytes, delivery_id: int, settled: bool, state: Any) -> None:
        try:
            request = Request.decode(payload)
        except (CodecError, InvalidArgumentError) as error:
            _log.warning(
                "request rejected: peer=%s node=%.300r condition=%s reason=%.300s",
                self._client.name, self.node, refusal(error).condition, error,
            )  # fmt: skip
            if settled:
                self._lose(state)
            else:
                self.link.dispose(delivery_id, delivery_id, Rejected(amqp_error(error)))
            return
        try:
            request.transaction = None if state is None else self._transaction(state)
        except IsthmusError as error:
            if not settled:
                self.link.dispose(delivery_id, delivery_id, Rejected(amqp_error(error)))
            status, condition, text = refusal(error)
            self._respond(request, Reply(status, text, None, condition))
            return
        expected_on = self._replies(request)
        if expected_on is not None and not self._has_room(expected_on):
            self._lose(state)
            return
        if not settled:
            self.link.dispose(delivery_id, delivery_id)
        request.desk = self._client.large
        request.can_reply = lambda: self._can_reply(request)
        if expected_on is not None:
            expected_on.expected += 1
        self._unanswered[id(request)] = expected_on
        self._answer(request, lambda reply: self._finish(request, reply))

    def _transaction(self, state: Any) -> Transaction:
        """The transaction that a transfer's state names.

        Raises:
            NotAllowedError: requests to this node take part in no transaction; they are carried out at once, and a roll-back would not undo them.
            IsthmusError: as `Transactions.find`.
        """
        if self._transactions is None or not isinstance(state, TransactionalState):
            raise NotAllowedError("Requests to this node cannot take part in a transaction.")
        return self._transactions.find(state.txn_id, self.link.amqp_session)

    def _lose(self, state: Any) -> None:
        """A request with this state is not carried out, and not answered."""
        if self._transactions is not None:
            self._transactions.lose(state)

    def _finish(self, request: Request, reply: Reply) -> None:
        """Replies to a request that was taken, once, and ends the links that wait for that (I5)."""
        if id(request) not in self._unanswered:
            return
        expected_on = self._unanswered.pop(id(request))
        if expected_on is not None:
            expected_on.expected -= 1
        self._respond(request, reply)
        if expected_on is not None and expected_on.is_ending:
            expected_on.flush()
        if self._on_answered_all is not None and not self._unanswered:
            run, self._on_answered_all = self._on_answered_all, None
            run()

    def _respond(self, request: Request, reply: Reply) -> None:
        if reply.status >= 400:
            _log.warning(
                "request failed: peer=%s node=%.300r operation=%.64r status=%d condition=%s reason=%.300s",
                self._client.name, self.node, request.operation, reply.status, reply.condition, reply.description,
            )  # fmt: skip
        replies = request.promised_on or self._replies(request)
        is_promised = request.promised_on is not None
        if replies is not None and (is_promised or self._has_room(replies)):
            replies.send(reply.encode(request, self._style), is_promised=is_promised)
            self._client.touch()

    def _has_room(self, replies: Replies) -> bool:
        """Whether one more reply may wait (I3); ends the link where it may not."""
        if replies.has_room(self.link.max_message_size_bytes):
            return True
        error = QuotaExceededError("Replies wait for which the client grants no credit, or that it does not read.")
        _log.warning("requests refused: peer=%s node=%.300r reason=%s", self._client.name, self.node, error)
        self.link.detach(amqp_error(error))
        return False

    def _replies(self, request: Request) -> Replies | None:
        """The link for the reply to a request; None if the client has none."""
        return find_replies(self._client.replies(), request, self.node, self.link)

    def _can_reply(self, request: Request) -> bool:
        is_ending = self.takes_no_more or self.link.detached or self._on_answered_all is not None
        replies = None if is_ending else self._replies(request)
        if replies is None or replies.is_ending or replies.link.detached:
            return False
        if not replies.has_room(self.link.max_message_size_bytes):
            return False
        replies.promised += 1
        request.promised_on = replies
        return True
