"""Links on which clients receive messages from a queue, subscription or dead-letter queue.

What it is: takes messages from the entity as far as the client's credit reaches, sends them, and turns the client's
dispositions into settlements. What it is not: the choice of whose turn it is (`isthmus.broker.link.dispatch`).
A little over 400 lines: sending, settling and transactions share the account of what is out on the link.
Spec: docs/explanation/protocol.md, Links, Settlement.

Invariants:
    I1. Every unsettled disposition is answered with the outcome's own type after the change is durable, or with rejected
        and the reason; settled ones are answered with nothing.
    I2. Messages taken without a lock are sent only after their deletion is durable.
    I3. A detached link settles nothing: its locks live on until they expire, and `$management` settles them.
    I4. Each delivery is settled once, whatever the client sends.
    I5. What was disposed of in a transaction is settled from this side when the commit is durable, not before. After a
        roll-back the client disposes of it again; if it has settled its side already, the link's default outcome applies.
    I6. Messages go out in the order in which they were taken, large ones in parts.
    I7. `owed` counts settlements that wait for a commit, so that the link's end is told behind it
        (`isthmus.broker.link.departure`); they are answered although the link takes nothing any more.
    I8. Where this side ends the link, what was deleted for the client is sent before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from isthmus.amqp import Link
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source, TransactionalState
from isthmus.broker.large import LARGE_BYTES, Stream
from isthmus.broker.link.condition import amqp_error, refusal
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.departure import Owed
from isthmus.broker.link.handler import LinkHandler, LinkUse, Rounds
from isthmus.broker.link.request import Way, text_map
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right
from isthmus.entities import Acquired, Payload, Transaction
from isthmus.entities.port import MessageSource
from isthmus.entities.queue.run import runs_of
from isthmus.entities.transaction.transaction import Ending
from isthmus.errors import IsthmusError, LockLostError, NotAllowedError

__all__ = ["Carrier", "SenderLink", "Verdict"]

_log = logging.getLogger(__name__)

_PRESETTLED = 1
_MASK32 = 0xFFFFFFFF
# Messages of one turn together: large ones must not fill the memory of the connection.
_TURN_BYTES = 1 << 20
# What a message is taken to be large before the first one was seen.
_EXPECTED_BYTES = 16 * 1024

_LOST = LockLostError("The lock supplied is invalid. Either the lock expired, or the message has already been removed.")


class Verdict(NamedTuple):
    """What a delivery state means: the call on the queue, the state to echo, and whether that may go out at once."""

    settle: Callable[..., Sequence[bool]]
    echo: Any
    at_once: bool = False


class Carrier(Way, Protocol):
    """The connection below a link that receives."""

    def offer(self, sender_link: SenderLink) -> None:
        """A receiving link can take messages again."""
        ...

    def offer_later(self, sender_link: SenderLink) -> None:
        """As `offer`, after a pause."""
        ...


class SenderLink(LinkHandler):
    """One link on which a client receives.

    Args:
        link: whose sender we are, accepted.
        path: the entity as the client wrote it.
        queue: where the messages come from.
        carrier: the connection.
        transactions: of the connection.
    """

    owed: Owed
    use = LinkUse("consumer", "Message")

    def __init__(
        self,
        link: Link,
        path: str,
        queue: MessageSource,
        carrier: Carrier,
        transactions: Transactions,
    ) -> None:
        self.link = link
        self.path = path
        self.queue = queue
        self.closed = False
        self.grants = 0
        self.owed = Owed()
        self._carrier = carrier
        self._transactions = transactions
        self._deletes = link.snd_settle_mode == _PRESETTLED
        self._tokens: dict[int, bytes] = {}
        # Deliveries in open transactions; with what the client has settled each, if it has.
        self._enlisted: dict[int, Verdict | None] = {}
        self._reserved = 0
        # What ends the link, once nothing is reserved.
        self._on_sent_all: Callable[[], None] | None = None
        self._mean_bytes = _EXPECTED_BYTES
        self._delivered = 0
        self._stream: Stream | None = None
        # Taken, and waiting for a large message before them to have left.
        self._behind: deque[tuple[Payload, bytes]] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether messages could be sent now."""
        return not self.closed and self._on_sent_all is None and self._room > 0 and self._carrier.is_writable

    def check_open(self) -> None:
        """Refuse where the link cannot go on.

        Raises:
            IsthmusError: the entity was deleted, or gives no messages any more.
        """
        self.queue.check_receivable()

    def on_credit(self) -> None:
        self.grants += 1
        self.on_writable()

    def on_writable(self) -> None:
        self.resume()
        self.offer()

    def offer(self) -> None:
        """There is credit, a drain, or room to write: take part in the rounds."""
        self._carrier.offer(self)

    def is_permitted(self, access: Access) -> bool:
        return access.permits(self.path, Right.LISTEN)

    @property
    def activity(self) -> object:
        """Changes whenever the client gets, settles or asks for messages; a large one comes in parts."""
        left_bytes = 0 if self._stream is None else self._stream.left_bytes
        return self._delivered, len(self._tokens), self.grants, left_bytes

    @property
    def _room(self) -> int:
        return self.link.sendable - self._reserved - len(self._behind)

    def deliver(self, limit: int) -> int:
        """Send up to `limit` messages; how many were taken, 0 if the queue has none.

        Raises:
            IsthmusError: the entity gives nothing any more (disabled, deleted).
        """
        count = max(1, min(limit, self._room, _TURN_BYTES // self._mean_bytes))
        if count > 1 and self.queue.holds_large:
            count = 1
        if not self._deletes:
            acquired = self.queue.acquire(count)
            if acquired is None:
                return 0
            self._send(acquired)
            return len(acquired.tags)
        box: list[Acquired] = []
        taken = self.queue.acquire(
            count, lock=False, on_durable=lambda: self._send_deleted(box), on_failed=lambda _: self._not_deleted(box)
        )
        if taken is None:
            return 0
        box.append(taken)
        self._reserved += len(taken.tags)
        return len(taken.tags)

    def drain(self) -> None:
        """Answer a drain: there is nothing more to send, so the credit that is left is used up.

        Where the wire or the session's window takes no more there may be; `on_writable` and `on_credit` come back to it.
        """
        link = self.link
        is_sending = self._reserved or self._behind or link.is_sending
        is_held_up = link.credit > 0 and not (self._carrier.is_writable and link.amqp_session.send_window > 0)
        if link.drain and not is_sending and not is_held_up:
            link.drained()

    def resume(self) -> None:
        """The connection or the session has room again."""
        if self._stream is not None:
            self._stream.pump()
        elif self._behind and not self.closed:
            self._send_behind()

    def flush(self) -> None:
        """Send what was written."""
        self._carrier.flush()

    def on_disposed(self, first: int, last: int, state: Any, settled: bool) -> None:
        """The client disposed of deliveries first to last."""
        count = ((last - first) & _MASK32) + 1
        pop = self._tokens.pop
        if count > len(self._tokens):
            ids = [each for each in self._tokens if (each - first) & _MASK32 < count]
        elif last < first:
            ids = [(first + each) & _MASK32 for each in range(count)]
        else:
            ids = range(first, last + 1)  # type: ignore[assignment]
        verdict = self._verdict(state.outcome if type(state) is TransactionalState else state, settled)
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
        self._settle(ids, tokens, verdict, settled)  # type: ignore[arg-type]

    def close(self) -> None:
        """The link is gone; the locks stay."""
        self.closed = True
        self._on_sent_all = None
        self._tokens.clear()
        self._behind.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def withdraw(self, rounds: Rounds) -> None:
        rounds.remove_sender_link(self)

    def when_sent(self, run: Callable[[], None]) -> None:
        """Call once what is being deleted for the client has been sent (I8), and take nothing more; not after `close`."""
        if self._reserved and not self.closed:
            self._on_sent_all = run
        else:
            run()

    def detach(self, error: Exception) -> None:
        """End the link from this side, behind what it owes."""
        self.link.begin_detach(amqp_error(error))
        self.owed.when_none(self.link.finish_detach)

    def statistics(self) -> dict[str, int]:
        """Messages delivered so far, and how many of them wait for a disposition."""
        return {"delivered": self._delivered, "unsettled": len(self._tokens)}

    def _send(self, acquired: Acquired) -> None:
        payloads, tags = acquired.payloads, acquired.tags
        count = len(tags)
        size = sum(map(len, payloads))
        self._mean_bytes = size // count + 1
        is_large = size > LARGE_BYTES and max(map(len, payloads)) > LARGE_BYTES
        if is_large or self._stream is not None or self._behind:
            self._behind.extend(zip(payloads, tags, strict=True))
            self._send_behind()
            return
        self._send_now(payloads, tags)  # type: ignore[arg-type]  # none is large

    def _send_behind(self) -> None:
        """Send what waits in its turn, up to the next large message, which then is on its way."""
        while self._behind and self._stream is None:
            payload, tag = self._behind.popleft()
            # A client may take credit back meanwhile; what was taken for it is sent all the same.
            self.link.credit = max(self.link.credit, 1)
            if isinstance(payload, bytes) and len(payload) <= LARGE_BYTES:
                self._send_now([payload], [tag])
                continue
            if self.link.sendable < 1:  # the session's window is closed: until it opens nothing is begun
                self._behind.appendleft((payload, tag))
                return
            self._stream = stream = Stream(
                self.link, payload, tag, self._carrier, self._carrier.large, self._on_sent, settled=self._deletes
            )
            self._delivered += 1
            if not self._deletes:
                self._tokens[stream.delivery_id] = tag

    def _on_sent(self, error: IsthmusError | None) -> None:
        """A large message has left, or cannot."""
        self._stream = None
        if self.closed:
            return
        if error is not None:
            _log.error("message not sent: entity=%r reason=%s", self.path, error)
            self._behind.clear()
            self.detach(error)
        self._send_behind()
        self.offer()
        self._carrier.touch()

    def _send_now(self, payloads: Sequence[bytes], tags: Sequence[bytes]) -> None:
        count = len(tags)
        first = self.link.send_many(payloads, tags, settled=self._deletes)
        self._delivered += count
        if self._deletes:
            return
        if first + count <= _MASK32:
            self._tokens.update(zip(range(first, first + count), tags, strict=True))
        else:
            self._tokens.update(((first + number) & _MASK32, tag) for number, tag in enumerate(tags))

    def _send_deleted(self, box: list[Acquired]) -> None:
        """Messages whose deletion is durable; a client that has gone meanwhile loses them, as the mode says."""
        self._unreserve(box)
        if self.closed or self.link.detached or self.link.amqp_session.ended:
            return
        # A client may take credit back while the deletion is synced; what is already on its way is sent all the same.
        self.link.credit = max(self.link.credit, len(box[0].tags))
        self._send(box[0])
        self.drain()
        self._carrier.touch()
        self._tell_sent_all()

    def _not_deleted(self, box: list[Acquired]) -> None:
        """The disk refused: the messages are there again, and the client, which has granted its credit, waits for them."""
        self._unreserve(box)
        self._carrier.offer_later(self)
        self._tell_sent_all()

    def _tell_sent_all(self) -> None:
        if not self._reserved and self._on_sent_all is not None:
            run, self._on_sent_all = self._on_sent_all, None
            run()

    def _unreserve(self, box: list[Acquired]) -> None:
        self._reserved -= len(box[0].tags) if box else 0

    def _verdict(self, state: Any, settled: bool) -> Verdict | None:
        """What a state asks for; None for one that is no outcome."""
        queue = self.queue
        if type(state) is Accepted:
            return Verdict(queue.complete, state)
        if isinstance(state, Released):
            return Verdict(lambda tokens, *_: queue.release(tokens), Released(), at_once=True)
        if isinstance(state, Modified):
            properties = text_map(state.message_annotations) or None
            settle = queue.defer if state.undeliverable_here else queue.abandon
            echo = Modified(state.delivery_failed, state.undeliverable_here)
            return Verdict(partial(_with_callbacks, settle, properties), echo)
        if isinstance(state, Rejected):
            info = text_map(state.error.info if state.error is not None else None)
            reason = info.pop("DeadLetterReason", None)
            description = info.pop("DeadLetterErrorDescription", None)
            if state.error is not None and state.error.condition != "com.microsoft:dead-letter":
                reason = reason if reason is not None else str(state.error.condition)
                description = description if description is not None else state.error.description
            settle = partial(queue.dead_letter, reason=reason, description=description, properties=info or None)
            return Verdict(lambda tokens, done, bad: settle(tokens, on_durable=done, on_failed=bad), Rejected())
        return None

    def _default_verdict(self) -> Verdict:
        """What becomes of a delivery that the client settled without an outcome that counts."""
        source = self.link.source
        state = source.default_outcome if isinstance(source, Source) else None
        # An outcome of another kind stands for none, as it would in a disposition.
        return (self._verdict(state, False) if state is not None else None) or self._verdict(Released(), False)  # type: ignore[return-value]

    def _settle(self, ids: Sequence[int], tokens: list[bytes], verdict: Verdict, settled: bool) -> None:
        flags: Sequence[bool] = ()

        def durable() -> None:
            if settled:
                return
            if all(flags):
                self._answer(ids, verdict.echo)
            else:
                for ok, group in groupby(zip(ids, flags, strict=True), key=lambda pair: pair[1]):
                    self._answer([each for each, _ in group], verdict.echo if ok else Rejected(amqp_error(_LOST)))
            self.owed.paid()

        def failed(error: Exception) -> None:
            if not settled:
                self._answer(ids, Rejected(amqp_error(error)))
                self.owed.paid()

        if not settled:
            self.owed.add()

        try:
            # Who settles first hears no more of it.
            flags = verdict.settle(tokens, None, None) if settled else verdict.settle(tokens, durable, failed)
            if verdict.at_once:
                durable()
        except IsthmusError as error:
            if not isinstance(error, NotAllowedError):
                _log.warning("settlement failed: entity=%r condition=%s", self.path, refusal(error).condition)
            failed(error)

    def _enlist(self, ids: Sequence[int], tokens: list[bytes], verdict: Verdict, txn_id: bytes, settled: bool) -> None:
        """Let a transaction settle deliveries; the client is told the provisional outcome."""

        def on_end(ending: Ending) -> None:
            self._end_enlisted(ids, tokens, ending, TransactionalState(txn_id, verdict.echo))

        found: Transaction | None = None
        try:
            found = self._transactions.find(txn_id, self.link.amqp_session, [(self.path, Right.LISTEN)])
            if isinstance(verdict.echo, Rejected) and self.queue.dead_letters is None:
                raise NotAllowedError(
                    f"'{self.queue.path}' has no dead-letter queue of its own; complete the message instead."
                )
            found.settle(self.queue, tokens, lambda taken: verdict.settle(taken, None, None), on_end)
        except IsthmusError as error:
            if not settled:
                self._answer(ids, Rejected(amqp_error(error)))
                return
            # Nobody hears of it but by the discharge.
            if found is not None:
                found.doom(error)
            self._settle(ids, tokens, self._default_verdict(), True)
            return
        self._enlisted.update(dict.fromkeys(ids, self._default_verdict() if settled else None))
        if not settled:
            self._tell(ids, TransactionalState(txn_id, verdict.echo))

    def _meet_enlisted(self, first: int, count: int, verdict: Verdict, state: Any, settled: bool) -> None:
        """The client disposed of deliveries, of which some are in a transaction that has not ended."""
        ids = [each for each in self._enlisted if (each - first) & _MASK32 < count]
        if settled:
            if type(state) is TransactionalState:
                verdict = self._default_verdict()
            self._enlisted.update(dict.fromkeys(ids, verdict))
        elif ids:
            error = NotAllowedError("The delivery is part of a transaction that has not been discharged.")
            self._tell(ids, Rejected(amqp_error(error)))

    def _end_enlisted(
        self, ids: Sequence[int], tokens: Sequence[bytes], ending: Ending, state: TransactionalState
    ) -> None:
        """A transaction has ended in which deliveries were settled."""
        unsettled: list[int] = []
        for each, token in zip(ids, tokens, strict=True):
            verdict = self._enlisted.pop(each, None)
            if verdict is None:
                unsettled.append(each)
                if ending is Ending.ROLLED_BACK and not self.closed:
                    self._tokens[each] = token
            elif ending is Ending.ROLLED_BACK:
                self._settle([each], [token], verdict, True)
        if ending is not Ending.ROLLED_BACK and not self.closed:
            self._answer(unsettled, state if ending is Ending.COMMITTED else Rejected(amqp_error(_LOST)))

    def _tell(self, ids: Sequence[int], state: Any) -> None:
        """Tell the client a state of deliveries that it may still change."""
        self._carrier.touch()
        for first, last in runs_of(ids):
            self.link.tell_sent(first, last, state)

    def _answer(self, ids: Iterable[int], state: Any) -> None:
        """Settle deliveries, one disposition for each run of ids."""
        self._carrier.touch()
        if isinstance(ids, range):
            self.link.settle_sent(ids[0], ids[-1], state)
            return
        first = last = None
        for each in ids:
            if first is None or last is None:
                first = last = each
            elif each == (last + 1) & _MASK32:
                last = each
            else:
                self.link.settle_sent(first, last, state)
                first = last = each
        if first is not None and last is not None:
            self.link.settle_sent(first, last, state)


def _with_callbacks(
    settle: Callable[..., list[bool]], properties: Any, tokens: list[bytes], durable: Any, failed: Any
) -> list[bool]:
    return settle(tokens, properties, durable, failed)
