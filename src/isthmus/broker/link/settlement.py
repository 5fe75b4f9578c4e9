"""The settlement of deliveries that were sent on a link.

What it is: the unsettled deliveries of a client, the settlements that its dispositions request, and the answers once they are durable;
transactions included. What it is not: sending (`sender_link`), or the meaning of a state (`verdict`).
Spec: docs/explanation/protocol.md, Settlement; OASIS AMQP 1.0 2.6.12, 4.4.3.

Invariants:
    I1. Every unsettled disposition is answered with the outcome's own type after the change is durable, or with rejected
        and the reason; settled ones are answered with nothing.
    I2. A detached link settles nothing: its locks stay until they expire, and can be settled by `$management`.
    I3. Each delivery is settled once, whatever the client sends.
    I4. Deliveries disposed of in a transaction are settled from this side when the commit is durable, not before. After a
        roll-back the client disposes of them again; if it has settled its side already, the link's default outcome applies.
    I5. `owed` counts settlements that wait for a commit, so that the link's end is sent after them
        (`isthmus.broker.link.departure`); they are answered although the link accepts nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from isthmus.amqp import Link
from isthmus.amqp.performative import Rejected, TransactionalState
from isthmus.broker.link.condition import amqp_error, refusal
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.departure import Owed
from isthmus.broker.link.verdict import Verdict, default_verdict, verdict_of
from isthmus.broker.security.grant import Right
from isthmus.entities import Transaction
from isthmus.entities.port import MessageSource
from isthmus.entities.queue.run import runs_of
from isthmus.entities.transaction.transaction import Ending
from isthmus.errors import IsthmusError, LockLostError, NotAllowedError

__all__ = ["Settlement"]

_log = logging.getLogger(__name__)

_MASK32 = 0xFFFFFFFF
_LOST = LockLostError("The lock supplied is invalid. Either the lock expired, or the message has already been removed.")


class Settlement:
    """The settlement of one link on which a client receives.

    Args:
        link: whose sender we are.
        path: the entity as the client wrote it.
        queue: the source of the messages.
        transactions: of the connection.
        touch: schedules a flush at the end of the loop's iteration.

    Attributes:
        tokens: by delivery id, the lock tokens of deliveries that the client has not disposed of.
        owed: outcomes that wait for a commit.
    """

    def __init__(
        self, link: Link, path: str, queue: MessageSource, transactions: Transactions, touch: Callable[[], None]
    ) -> None:
        self.tokens: dict[int, bytes] = {}
        self.owed = Owed()
        self._link = link
        self._path = path
        self._queue = queue
        self._transactions = transactions
        self._touch = touch
        self._is_closed = False
        # Deliveries in open transactions; each with the outcome with which the client has settled it, if it has.
        self._enlisted: dict[int, Verdict | None] = {}

    def sent(self, first: int, tags: Sequence[bytes]) -> None:
        """Deliveries were sent; their tags are their lock tokens."""
        count = len(tags)
        if first + count <= _MASK32:
            self.tokens.update(zip(range(first, first + count), tags, strict=True))
        else:
            self.tokens.update(((first + number) & _MASK32, tag) for number, tag in enumerate(tags))

    def close(self) -> None:
        """The link is gone; the locks stay (I2)."""
        self._is_closed = True
        self.tokens.clear()

    def dispose(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client disposed of deliveries first to last."""
        count = ((last - first) & _MASK32) + 1
        pop = self.tokens.pop
        if count > len(self.tokens):
            ids = [each for each in self.tokens if (each - first) & _MASK32 < count]
        elif last < first:
            ids = [(first + each) & _MASK32 for each in range(count)]
        else:
            ids = range(first, last + 1)  # type: ignore[assignment]
        verdict = verdict_of(state.outcome if type(state) is TransactionalState else state, self._queue)
        if verdict is None and settled:
            verdict = self._default_verdict()
        if verdict is None:
            return
        if self._enlisted:
            self._meet_enlisted(first, count, verdict, state, settled)
        tokens = [pop(each, None) for each in ids]
        if None in tokens:
            known = [(each, token) for each, token in zip(ids, tokens, strict=True) if token is not None]
            if not known:
                return
            ids, tokens = [each for each, _ in known], [token for _, token in known]
        if type(state) is TransactionalState:
            self._enlist(ids, tokens, verdict, state.txn_id, settled)  # type: ignore[arg-type]
            return
        self.settle(ids, tokens, verdict, settled)  # type: ignore[arg-type]

    def settle(self, ids: Sequence[int], tokens: list[bytes], verdict: Verdict, settled: bool) -> None:
        """Settles deliveries in one step; `settled`: the client gets no answer."""
        flags: Sequence[bool] = ()

        def durable() -> None:
            if settled:
                return
            if all(flags):
                self.answer(ids, verdict.echo)
            else:
                for ok, group in groupby(zip(ids, flags, strict=True), key=lambda pair: pair[1]):
                    self.answer([each for each, _ in group], verdict.echo if ok else Rejected(amqp_error(_LOST)))
            self.owed.paid()

        def failed(error: Exception) -> None:
            if not settled:
                self.answer(ids, Rejected(amqp_error(error)))
                self.owed.paid()

        if not settled:
            self.owed.add()

        try:
            # A client that settles first gets no answer.
            flags = verdict.settle(tokens, None, None) if settled else verdict.settle(tokens, durable, failed)
            if verdict.at_once:
                durable()
        except IsthmusError as error:
            if not isinstance(error, NotAllowedError):
                _log.warning("settlement failed: entity=%r condition=%s", self._path, refusal(error).condition)
            failed(error)

    def answer(self, ids: Iterable[int], state: Any) -> None:
        """Settles deliveries from this side, one disposition for each run of ids."""
        self._touch()
        if type(ids) is range:
            self._link.settle_sent(ids[0], ids[-1], state)
            return
        first = last = None
        for each in ids:
            if first is None or last is None:
                first = last = each
            elif each == (last + 1) & _MASK32:
                last = each
            else:
                self._link.settle_sent(first, last, state)
                first = last = each
        if first is not None and last is not None:
            self._link.settle_sent(first, last, state)

    def _default_verdict(self) -> Verdict:
        return default_verdict(self._link.source, self._queue)

    # ---- transactions

    def _enlist(self, ids: Sequence[int], tokens: list[bytes], verdict: Verdict, txn_id: bytes, settled: bool) -> None:
        """Adds the settlement of deliveries to a transaction; the client is sent the provisional outcome."""

        def on_end(ending: Ending) -> None:
            self._end_enlisted(ids, tokens, ending, TransactionalState(txn_id, verdict.echo))

        found: Transaction | None = None
        try:
            found = self._transactions.find(txn_id, self._link.amqp_session, [(self._path, Right.LISTEN)])
            if type(verdict.echo) is Rejected and self._queue.dead_letters is None:
                raise NotAllowedError(
                    f"'{self._queue.path}' has no dead-letter queue of its own; complete the message instead."
                )
            found.settle(self._queue, tokens, lambda taken: verdict.settle(taken, None, None), on_end)
        except IsthmusError as error:
            if not settled:
                self.answer(ids, Rejected(amqp_error(error)))
                return
            # The only answer to it is that of the discharge.
            if found is not None:
                found.doom(error)
            self.settle(ids, tokens, self._default_verdict(), True)
            return
        self._enlisted.update(dict.fromkeys(ids, self._default_verdict() if settled else None))
        if not settled:
            self._send_state(ids, TransactionalState(txn_id, verdict.echo))

    def _meet_enlisted(self, first: int, count: int, verdict: Verdict, state: Any, settled: bool) -> None:
        """The client disposed of deliveries, of which some are in a transaction that has not ended."""
        ids = [each for each in self._enlisted if (each - first) & _MASK32 < count]
        if settled:
            if type(state) is TransactionalState:
                verdict = self._default_verdict()
            self._enlisted.update(dict.fromkeys(ids, verdict))
        elif ids:
            error = NotAllowedError("The delivery is part of a transaction that has not been discharged.")
            self._send_state(ids, Rejected(amqp_error(error)))

    def _end_enlisted(
        self, ids: Sequence[int], tokens: Sequence[bytes], ending: Ending, state: TransactionalState
    ) -> None:
        """A transaction has ended in which deliveries were settled."""
        unsettled: list[int] = []
        for each, token in zip(ids, tokens, strict=True):
            verdict = self._enlisted.pop(each, None)
            if verdict is None:
                unsettled.append(each)
                if ending is Ending.ROLLED_BACK and not self._is_closed:
                    self.tokens[each] = token
            elif ending is Ending.ROLLED_BACK:
                self.settle([each], [token], verdict, True)
        if ending is not Ending.ROLLED_BACK and not self._is_closed:
            self.answer(unsettled, state if ending is Ending.COMMITTED else Rejected(amqp_error(_LOST)))

    def _send_state(self, ids: Sequence[int], state: Any) -> None:
        """Sends the client a state of deliveries that it may still change."""
        self._touch()
        for first, last in runs_of(ids):
            self._link.update_sent(first, last, state)
