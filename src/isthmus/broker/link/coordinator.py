"""Links on which a client declares and discharges transactions, and the transactions of its connection.

What it is: the coordinator of AMQP transactions for one connection. What it is not: what a transaction does
(`isthmus.entities.transaction.transaction`), nor the links whose transfers and dispositions take part.
Spec: AMQP 1.0 part 4; docs/explanation/protocol.md, Transactions.

Invariants:
    I1. A transaction is known on its connection only, and no longer after its discharge.
    I2. A discharge is accepted only when the operations that it committed are durable.
    I3. The end of the coordinator's link, session or connection rolls back undischarged transactions; so does the time-out.
    I4. A message sent to another entity than the transaction's takes part only if its link is on the AMQP session of the
        first operation, and goes via the transaction's entity, which is how clients use transactions across entities.
    I5. A discharge commits only if the connection still has every right that the operations needed; otherwise the
        transaction is rolled back.
    I6. A transaction is rolled back at its discharge if a message or a settlement of it was dropped, e.g. since this side had ended its
        link: nobody answers it, and a client may discharge without waiting for an answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from isthmus.amqp import AmqpSession, CodecError, Link, Transfers, section
from isthmus.amqp.performative import (
    Composite,
    Declare,
    Declared,
    Discharge,
    Rejected,
    TransactionalState,
    decode,
)
from isthmus.broker.link.condition import amqp_error
from isthmus.broker.link.departure import Owed
from isthmus.broker.link.handler import LinkHandler
from isthmus.broker.security.grant import Right
from isthmus.clock import Clock
from isthmus.entities import (
    Engine,
    Transaction,
    TransactionRolledBackError,
    TransactionTimeoutError,
)
from isthmus.entities.catalog.catalog import parse_address
from isthmus.entities.error import UnknownTransactionError
from isthmus.entities.port import MessageTarget
from isthmus.errors import InvalidArgumentError, IsthmusError, NotAllowedError, QuotaExceededError

__all__ = ["Coordinator", "Transactions"]

_CREDIT = 100
# Transactions that timed out: their ids are kept for as long as a client may still refer to them.
_REMEMBERED = 100
_AMQP_VALUE = 0x77


class Transactions:
    """The transactions of one connection by id.

    Args:
        engine: makes them.
        clock: monotonic time.
        require: raises UnauthorizedError unless the connection has a right on an entity now.
    """

    def __init__(self, engine: Engine, clock: Clock, require: Callable[[str, Right], None]) -> None:
        self._engine = engine
        self._clock = clock
        self._require = require
        self._open: dict[bytes, tuple[Transaction, Coordinator]] = {}
        # The AMQP session of the first operation of each, and the ways via its entity.
        self._sessions: dict[bytes, AmqpSession] = {}
        self._ways: dict[tuple[bytes, str], MessageTarget] = {}
        self._overdue: dict[bytes, TransactionTimeoutError] = {}

    def declare(self, owner: Coordinator) -> bytes:
        """Begins one; returns its id.

        Raises:
            QuotaExceededError: the connection has reached its limit.
        """
        limit = self._engine.limits.max_transactions_per_connection
        if len(self._open) >= limit:
            raise QuotaExceededError(f"The connection has {len(self._open)} open transactions; {limit} are allowed.")
        txn_id = os.urandom(16)
        self._open[txn_id] = (self._engine.transaction(), owner)
        return txn_id

    def find(
        self, txn_id: bytes, amqp_session: AmqpSession | None = None, needs: Iterable[tuple[str, Right]] = ()
    ) -> Transaction:
        """The open transaction of this id.

        Args:
            txn_id: as the client wrote it.
            amqp_session: of the link whose operation is to take part.
            needs: the rights that it requires, each with the path; they are checked again at the discharge (I5).

        Raises:
            UnknownTransactionError: there is none.
            TransactionTimeoutError: it has timed out.
        """
        self.tick()
        if txn_id in self._overdue:
            raise self._overdue[txn_id]
        found = self._open.get(txn_id)
        if found is None:
            raise UnknownTransactionError(txn_id.hex())
        if amqp_session is not None and found[0].entity is None:
            self._sessions[txn_id] = amqp_session
        for need in needs:
            found[0].add_condition(need, partial(self._require, *need))
        return found[0]

    def way(self, txn_id: bytes, path: str, amqp_session: AmqpSession) -> MessageTarget | None:
        """The route by which a message for an entity takes part in an open transaction on another one; None if there is none (I4).

        Raises:
            IsthmusError: as `Engine.via`.
        """
        home = self._open[txn_id][0].entity
        if home in (None, parse_address(path).name) or self._sessions.get(txn_id) is not amqp_session:
            return None
        assert home is not None
        known = self._ways.get((txn_id, path))
        if known is None:
            known = self._ways[txn_id, path] = self._engine.via(home, path)
        return known

    def take(self, txn_id: bytes) -> Transaction:
        """As `find`, and removes it."""
        found = self.find(txn_id)
        self._close(txn_id)
        return found

    def _close(self, txn_id: bytes) -> Transaction:
        self._sessions.pop(txn_id, None)
        for key in [key for key in self._ways if key[0] == txn_id]:
            del self._ways[key]
        return self._open.pop(txn_id)[0]

    def lose(self, state: Any) -> None:
        """A message or settlement with this state is not taken, and not answered (I6)."""
        found = self._open.get(state.txn_id) if isinstance(state, TransactionalState) else None
        if found is not None:
            found[0].doom(
                NotAllowedError("a message or a settlement was refused, or arrived behind the end of its link")
            )

    def drop(self, owner: Coordinator) -> None:
        """Rolls back the transactions that were declared on a link and not discharged."""
        for txn_id in [each for each, (_, link) in self._open.items() if link is owner]:
            self._close(txn_id).rollback()

    def tick(self) -> None:
        """Rolls back the transactions that have timed out."""
        if not self._open:
            return
        now = self._clock.monotonic()
        for txn_id in [each for each, (one, _) in self._open.items() if one.deadline <= now]:
            self._close(txn_id).rollback()
            while len(self._overdue) >= _REMEMBERED:
                del self._overdue[next(iter(self._overdue))]
            self._overdue[txn_id] = TransactionTimeoutError(self._engine.limits.transaction_timeout_ms)

    def statistics(self) -> dict[str, int]:
        """Transactions that are open."""
        return {"open_transactions": len(self._open)}


class Coordinator(LinkHandler):
    """One link to the coordinator.

    Args:
        link: whose receiver we are, accepted.
        transactions: of the connection.
        touch: schedules a flush at the end of the loop's iteration.
    """

    path = "$coordinator"

    owed: Owed

    def __init__(self, link: Link, transactions: Transactions, touch: Callable[[], None]) -> None:
        self.link = link
        self._transactions = transactions
        self._touch = touch
        self.owed = Owed()

    def on_credit(self) -> None:
        self.top_up()

    def open(self) -> None:
        """Grant the first credit."""
        self.link.grant(_CREDIT)

    def close(self) -> None:
        """The link is gone."""
        self._transactions.drop(self)

    def on_transfers(self, event: Transfers) -> None:
        """Carries out declarations and discharges; a settled transfer is an error, because its outcome could not be sent."""
        if event.settled:
            self.close()
            error = NotAllowedError("Messages to the coordinator must not be sent settled.")
            self.link.begin_detach(amqp_error(error))
            self.owed.when_none(self.link.finish_detach)
            return
        for number, payload in enumerate(event.payloads):
            self._take(payload, (event.first_delivery_id + number) & 0xFFFFFFFF)
        self.top_up()

    def top_up(self) -> None:
        """Grant credit again, once half of it is used up."""
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)

    def _take(self, payload: bytes, delivery_id: int) -> None:
        def answer(state: Composite | None) -> None:
            self.link.dispose(delivery_id, delivery_id, state)
            self._touch()

        try:
            request = _request(payload)
            if isinstance(request, Declare):
                if request.global_id is not None:
                    raise NotAllowedError("Transactions with a global id are not supported.")
                answer(Declared(self._transactions.declare(self)))
            else:
                self._discharge(request, answer)
        except IsthmusError as error:
            answer(Rejected(amqp_error(error)))

    def _discharge(self, request: Discharge, answer: Callable[[Composite | None], None]) -> None:
        found = self._transactions.take(request.txn_id)
        if request.fail:
            found.rollback()
            answer(None)
            return

        def committed() -> None:
            answer(None)
            self.owed.paid()

        def failed(error: Exception) -> None:
            answer(Rejected(amqp_error(TransactionRolledBackError(str(amqp_error(error).description)))))
            self.owed.paid()

        self.owed.add()
        try:
            found.commit(committed, failed)
        except IsthmusError:
            self.owed.paid()
            raise


def _request(payload: bytes) -> Declare | Discharge:
    """The request in a message to the coordinator.

    Raises:
        InvalidArgumentError: neither a declaration nor a discharge.
    """
    try:
        start, end = section.locate(payload).body
        value = decode(payload, start + 3)[0] if end and payload[start + 2] == _AMQP_VALUE else None
    except (CodecError, IndexError, ValueError) as error:
        raise InvalidArgumentError(f"The coordinator cannot read the message: {error}") from None
    if not isinstance(value, Declare | Discharge):
        raise InvalidArgumentError("The coordinator takes declare and discharge only.")
    return value
