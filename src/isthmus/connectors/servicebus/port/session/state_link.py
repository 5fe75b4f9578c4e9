"""A session that is locked briefly, to read or set its state, and released.

What it is: the link that accepts a session by its id, without credit; the requests over it, one after the other; the end of both. What
it is not: the decision which session is next (`state_copy`).
Spec: docs/explanation/protocol.md, Sessions, Management.

Invariants:
    I1. No message is requested.
    I2. It is done after `LIMIT_SECONDS`, with or without answers of the namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from isthmus.connectors.servicebus.port.end import MarkedReceiver
from isthmus.connectors.servicebus.port.session.state_copy import digest_of
from isthmus.errors import IsthmusError, LockLostError, OperationTimeoutError
from isthmus.transport import Client, Management, Reply

__all__ = ["StateLink", "reads", "sets", "start_get", "state_in"]

LIMIT_SECONDS = 30.0

Ask = Callable[[Management, Reply | None], Reply | None]
"""Sends the next request, after the answer to the previous one; None: there is none."""


def start_get(node: Management, session_id: str) -> Reply:
    """Requests the state of a session that a link of this connection has locked."""
    return node.start("get-session-state", {"session-id": session_id})


def reads(session_id: str) -> Ask:
    """Reads the state of a session."""
    return lambda node, before: start_get(node, session_id) if before is None else None


def sets(session_id: str, state: bytes | None, *, is_first: bool, own: Collection[bytes] = ()) -> Ask:
    """Sets the state of a session; None, or an empty one, for no state. `is_first`: only where it has no state, or one of the digests `own`."""
    step = 0 if is_first else 1

    def ask(node: Management, before: Reply | None) -> Reply | None:
        nonlocal step
        step += 1
        if step == 1:
            return start_get(node, session_id)
        found = None if before is None else state_in(before)
        if step == 2 and (found is None or digest_of(found) in own):
            return node.start("set-session-state", {"session-id": session_id, "session-state": state or None})
        return None

    return ask


def state_in(reply: Reply) -> bytes | None:
    """The state in an answer."""
    body: Any = reply.body
    state = body.get("session-state") if isinstance(body, dict) else None
    return bytes(state) if state else None


class StateLink:
    """The link.

    Args:
        session_id: the session's id.
        ask: sends the requests.
        mark: called when a frame arrives.
        client: the connection.
        path: the entity.
        now: monotonic seconds.

    Attributes:
        reply: the last request, once one is sent.
    """

    def __init__(
        self,
        session_id: str,
        ask: Ask,
        mark: Callable[[], None],
        client: Client,
        path: str,
        now: float,
    ) -> None:
        self.session_id = session_id
        self.reply: Reply | None = None
        self.limit = now + LIMIT_SECONDS
        self._ask, self._mark = ask, mark
        self._receiver = MarkedReceiver(mark, client, path, in_session=True, session_id=session_id)
        self._fault: IsthmusError | None = None
        self._is_complete = False

    def advance(self, now: float, management: Callable[[], Management]) -> bool:
        """Continues; returns whether it is done, with success or an `error`.

        Raises:
            IsthmusError: the connection is lost.
        """
        receiver, reply = self._receiver, self.reply
        if reply is not None and reply.done:
            self._is_complete = reply.error is None and not self._go_on(management)
            if self._is_complete or reply.error is not None:
                return True
        elif reply is None and receiver.attached and receiver.error is None:
            self._go_on(management)
        if receiver.error is None and now >= self.limit:
            self._fault = OperationTimeoutError(f"no answer within {LIMIT_SECONDS:g} s")
        return receiver.error is not None or self._fault is not None

    def _go_on(self, management: Callable[[], Management]) -> bool:
        """Sends the next request; returns whether there is one."""
        following = self._ask(management(), self.reply)
        if following is None:
            return False
        self.reply = following
        following.when_done(self._mark)
        return True

    @property
    def error(self) -> IsthmusError | None:
        """Why it failed; None where it did not."""
        if self._is_complete:
            return None
        refused = self.reply.error if self.reply is not None else None
        return refused or self._receiver.error or self._fault

    @property
    def is_taken(self) -> bool:
        """Whether another receiver has the session locked."""
        return self.reply is None and isinstance(self._receiver.error, LockLostError)

    def close(self) -> None:
        """Releases the session."""
        if self._receiver.client.error is None:
            self._receiver.close()
