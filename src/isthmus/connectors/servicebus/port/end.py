"""One route's end of a shared connection: the common part of sources and targets.

What it is: the steps from `open` to an open link - connection, token, attach - each with a time limit, and the
error of any of them, which is kept until the end is polled. What it is not: the frames on the link.

Invariants:
    I1. No step lasts longer than `STEP_SECONDS`.
    I2. Events of an earlier opening do not affect a later one.
    I3. A fault of this end's link does not affect other ends of the connection.
    I4. A remote side that gives no outcome of any sent delivery for `OUTCOME_SECONDS` counts as lost, although its connection works. As long as
        bytes of the deliveries still arrive there, the time does not begin.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.connectors.servicebus.port.connection import Remote, SharedConnection
from isthmus.connectors.servicebus.port.outcome_wait import OutcomeWait
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError
from isthmus.transport import Client, LinkTerms, Receiver, Reply, Sender

if TYPE_CHECKING:
    from isthmus.amqp import Link, Transfers

__all__ = ["STEP_SECONDS", "End", "MarkedReceiver", "MarkedSender", "Step"]

STEP_SECONDS = 30.0


class Step(enum.Enum):
    """The step of an opening, named by the event that it waits for."""

    CLOSED = "nothing"
    CONNECTING = "the connection"
    AUTHORIZING = "the answer to put-token"
    ATTACHING = "the answer to attach"
    ATTACHED = "messages"


class End:
    """An end.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        path: the entity.
        remote: the remote side.
        sessions: AMQP sessions that it may begin.

    Attributes:
        step: the present step.
        fault: why it is lost; reported when the end is polled.
        client: the connection's client, once it is open.
    """

    def __init__(self, pool: ConnectionPool, key: int, path: str, remote: Remote, sessions: int) -> None:
        self.pool = pool
        self.key = key
        self.path = path
        self.sessions = sessions
        self.step = Step.CLOSED
        self.fault: IsthmusError | None = None
        self.client: Client | None = None
        self._remote = remote
        self._connection: SharedConnection | None = None
        self._step_by = math.inf

    def open(self) -> None:
        """Begins to connect. No error if it is open."""
        if self.step is not Step.CLOSED:
            return
        self.fault = None
        self._begin(Step.CONNECTING)
        self._connection = self.pool.join(self, self._remote)

    def mark(self) -> None:
        """It has events to report."""
        self.pool.mark(self.key)

    def fail(self, error: IsthmusError) -> None:
        """It is lost."""
        if self.fault is None and self.step is not Step.CLOSED:
            self.fault = error
            self.mark()

    def attach(self, client: Client) -> None:
        """Begins the link.

        Raises:
            IsthmusError: the connection is lost.
        """
        raise NotImplementedError

    def check_time(self, now: float) -> None:
        """Fails a step that takes too long."""
        if now >= self._step_by:
            self.fail(
                OperationTimeoutError(
                    f"'{self.path}': waited {STEP_SECONDS:g} s for {self.step.value}; check whether the server answers"
                )
            )

    def check_outcomes(self, senders: Iterable[MarkedSender], now: float) -> bool:
        """Fails where no outcome has come for too long (I4); returns whether bytes of the deliveries have arrived since the last call."""
        is_moving = [each.wait.progresses(now) for each in senders]
        for path, seconds in {(each.path, each.wait.seconds) for each in senders if each.wait.is_over(now)}:
            text = (
                f"'{path}': no outcome of the sent messages for {seconds:g} s; check whether the server can store them"
            )
            self.fail(OperationTimeoutError(text))
        return any(is_moving)

    @staticmethod
    def outcomes_due(senders: Iterable[MarkedSender]) -> float:
        """When `check_outcomes` has to be called."""
        return min((each.wait.due for each in senders), default=math.inf)

    def step_deadline(self, now: float) -> float:
        """When `check_time` has to be called."""
        return now if self.fault is not None else self._step_by

    def attached(self) -> None:
        """The link is open."""
        self.step, self._step_by = Step.ATTACHED, math.inf

    def disconnect(self, now: float) -> None:
        """Leaves the connection; the caller has ended its links and AMQP sessions."""
        connection, self._connection, self.client, self.fault = self._connection, None, None, None
        self.step, self._step_by = Step.CLOSED, math.inf
        if connection is not None:
            connection.leave(self, now)

    # ---- calls of the connection

    def on_connected(self, client: Client) -> None:
        """The connection is open."""
        if self.step is not Step.CONNECTING:
            return
        self.client = client
        self._begin(Step.AUTHORIZING)
        try:
            reply = client.start_authorize(self.path)
            if reply is None:
                self._attach(client)
            else:
                reply.when_done(lambda: self._on_authorized(client, reply))
        except IsthmusError as error:
            self.fail(error)
        except Exception as fault:  # noqa: BLE001 - e.g. of a credential: the other ends are not affected (I3)
            self.fail(_unforeseen(self.path, fault))

    def on_disconnected(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made."""
        self.fail(error)

    def _on_authorized(self, client: Client, reply: Reply) -> None:
        if self.step is not Step.AUTHORIZING or self.client is not client:
            return
        try:
            client.finish_authorize(self.path, reply)
            self._attach(client)
        except IsthmusError as error:
            self.fail(error)
        except Exception as fault:  # noqa: BLE001 - as above
            self.fail(_unforeseen(self.path, fault))

    def _attach(self, client: Client) -> None:
        self._begin(Step.ATTACHING)
        self.attach(client)

    def _begin(self, step: Step) -> None:
        self.step, self._step_by = step, time.monotonic() + STEP_SECONDS


def _unforeseen(path: str, fault: Exception) -> IsthmusError:
    return ConnectionLostError(f"'{path}': {type(fault).__name__}: {fault}")


class _Marked:
    """A link that marks its end when a frame arrives, until it is closed."""

    _mark: Callable[[], None]

    def close(self) -> None:
        self._mark = _nothing
        super().close()  # type: ignore[misc]

    def on_attached(self, link: Link) -> None:
        super().on_attached(link)  # type: ignore[misc]
        self._mark()

    def on_credit(self, link: Link) -> None:
        super().on_credit(link)  # type: ignore[misc]
        self._mark()

    def on_transfers(self, event: Transfers) -> None:
        super().on_transfers(event)  # type: ignore[misc]
        self._mark()

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        super().on_disposed(first, last, state)  # type: ignore[misc]
        self._mark()

    def on_lost(self, error: IsthmusError) -> None:
        super().on_lost(error)  # type: ignore[misc]
        self._mark()


class MarkedReceiver(_Marked, Receiver):
    """A receiver that marks its end."""

    def __init__(
        self,
        mark: Callable[[], None],
        client: Client,
        path: str,
        terms: LinkTerms | None = None,
        *,
        in_session: bool = False,
        session_id: str | None = None,
    ) -> None:
        self._mark = mark
        super().__init__(client, path, terms=terms, in_session=in_session, session_id=session_id)


class MarkedSender(_Marked, Sender):
    """A sender that marks its end.

    Attributes:
        wait: the wait for outcomes.
    """

    def __init__(
        self,
        mark: Callable[[], None],
        client: Client,
        path: str,
        capabilities: tuple[str, ...] = (),
        terms: LinkTerms | None = None,
    ) -> None:
        self._mark = mark
        self.wait = OutcomeWait(client)
        super().__init__(client, path, capabilities, terms=terms)

    def send(self, payloads: Sequence[bytes], *, message_format: int = 0) -> int:
        first = super().send(payloads, message_format=message_format)
        self.wait.sent(time.monotonic())
        return first

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        super().on_disposed(first, last, state)
        self.wait.answered(time.monotonic(), is_missing=self.outstanding > 0)


def _nothing() -> None:
    """The callback of an end that has left."""
