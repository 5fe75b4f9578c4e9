"""The target's side of `session_state: copy`: locks a session briefly, and sets its state.

What it is: the connection to the target's namespace, opened again when it is lost, and the states that are being set over it. What it is
not: the link of messages, which another process has, or the decision what is set when (`state_copy`).

Invariants:
    I1. At most `AT_ONCE` sessions of the target are locked at a time.
    I2. `take` returns each state that was passed to `set` once, unless the connection is lost: then `poll` reports that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from isthmus.bridge.backoff import Backoff
from isthmus.connectors.servicebus.port.connection import Remote
from isthmus.connectors.servicebus.port.end import End, Step
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.port.session.state_copy import StateToSet
from isthmus.connectors.servicebus.port.session.state_link import StateLink, sets
from isthmus.errors import (
    IsthmusError,
    LockLostError,
    MessageTooLargeError,
    OperationTimeoutError,
    QuotaExceededError,
    ServerBusyError,
)
from isthmus.transport import Client, Management

__all__ = ["AT_ONCE", "SetState", "StateTarget"]

# Each takes three round trips: at 60 ms some 90 sessions a second.
AT_ONCE = 16
RETRY_SECONDS, RETRY_LIMIT_SECONDS = 0.5, 30.0
# Errors of one session, or its state; the others continue.
_OF_ONE_SESSION = (LockLostError, MessageTooLargeError, QuotaExceededError, OperationTimeoutError, ServerBusyError)
# AMQP sessions besides one for each session: that of the management node, and of links that are being ended.
_SPARE_AMQP_SESSIONS = 4


class SetState(NamedTuple):
    """The outcome of a state: `text` is empty where it is set."""

    attempt: StateToSet
    text: str


class StateTarget(End):
    """The target.

    Args:
        pool: the pool that it belongs to.
        key: of the source that it serves.
        path: the queue.
        remote: the remote side.
    """

    def __init__(self, pool: ConnectionPool, key: int, path: str, remote: Remote) -> None:
        super().__init__(pool, key, path, remote, sessions=AT_ONCE + _SPARE_AMQP_SESSIONS)
        self.text = ""  # why no state can be set
        self._management: Management | None = None
        self._links: dict[StateToSet, StateLink] = {}
        self._done: list[SetState] = []
        self._backoff = Backoff(RETRY_SECONDS, RETRY_LIMIT_SECONDS)
        self._open_at = -math.inf

    @property
    def is_ready(self) -> bool:
        """Whether states can be set."""
        return self.step is Step.ATTACHED and self.fault is None

    @property
    def identity(self) -> str:
        """Identity of the namespace, once it is open."""
        return self.client.namespace_id if self.client is not None else ""

    @property
    def room(self) -> int:
        """How many more states can be set now."""
        return AT_ONCE - len(self._links) if self.is_ready else 0

    def attach(self, client: Client) -> None:
        """Does nothing: no link is attached before a state is to be set."""
        self.attached()
        self.mark()

    def set(self, attempt: StateToSet, now: float) -> None:
        """Starts to set a state."""
        client = self.client
        assert client is not None
        try:
            ask = sets(attempt.session_id, attempt.state, is_first=attempt.is_first, own=attempt.own)
            self._links[attempt] = StateLink(attempt.session_id, ask, self.mark, client, self.path, now)
        except IsthmusError as error:
            self._done.append(SetState(attempt, str(error)))
            self.fail(error)

    def take(self) -> list[SetState]:
        """The outcomes of states since the last call."""
        done, self._done = self._done, []
        return done

    def poll(self, now: float) -> bool:
        """Continues; False: the connection is lost, and with it the states being set."""
        self.check_time(now)
        if self.step is Step.CLOSED and now >= self._open_at:
            self.open()
        if self.is_ready:
            try:
                self._work(now)
            except IsthmusError as error:
                self.fail(error)
        if self.fault is None:
            return True
        self.text = f"at the target: {self.fault}"
        self._open_at = now + self._backoff.next()
        self._end_links()
        self.disconnect(now)
        return False

    def _work(self, now: float) -> None:
        for attempt, link in list(self._links.items()):
            if not link.advance(now, self._node):
                continue
            error = link.error
            if error is None:
                self._backoff.reset()
                self.text = text = ""
            elif link.is_taken:
                text = f"another receiver has it locked at the target, '{self.path}'"
            elif isinstance(error, _OF_ONE_SESSION):
                text = f"at the target: {error}"
            else:
                raise error
            del self._links[attempt]
            link.close()
            self._done.append(SetState(attempt, text))

    def _node(self) -> Management:
        assert self.client is not None
        management = self._management
        if management is None or management.error is not None or management.client is not self.client:
            management = self._management = Management(self.client, self.path)
        return management

    def deadline(self, now: float) -> float:
        """When `poll` has work even without events."""
        if self.step is Step.CLOSED:
            return self._open_at
        due = self.step_deadline(now)
        return min([due, *(link.limit for link in self._links.values())])

    def close(self, now: float) -> None:
        """Closes it; the outcome of states being set is unknown."""
        self._end_links()
        self.disconnect(now)

    def _end_links(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
        management, self._management = self._management, None
        if management is not None and management.client.error is None:
            management.close()
