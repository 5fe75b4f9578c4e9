"""A session that is held for one request about its state, and given back.

What it is: the link that takes a session by its name, without credit; the request once it has it; the end of both. What it is not: the
decision whose turn it is (`state_copy`).
Spec: docs/explanation/protocol.md, Sessions, Management.

Invariants:
    I1. No message is asked for.
    I2. It is done after `LIMIT_SECONDS`, whatever the namespace does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.connectors.servicebus.port.end import MarkedReceiver
from isthmus.errors import IsthmusError, LockLostError, OperationTimeoutError
from isthmus.transport import Client, Management, Reply

__all__ = ["StateLink", "start_get", "start_set", "state_in"]

LIMIT_SECONDS = 30.0


def start_get(node: Management, session_id: str) -> Reply:
    """Asks for the state of a session that a link of this connection holds."""
    return node.start("get-session-state", {"session-id": session_id})


def start_set(node: Management, session_id: str, state: bytes | None) -> Reply:
    """Sets it; None, or an empty one, for no state."""
    return node.start("set-session-state", {"session-id": session_id, "session-state": state or None})


def state_in(reply: Reply) -> bytes | None:
    """The state that came."""
    body: Any = reply.body
    state = body.get("session-state") if isinstance(body, dict) else None
    return bytes(state) if state else None


class StateLink:
    """The link.

    Args:
        session_id: which session.
        ask: sends the request.
        mark: called when something comes.
        client: the connection.
        path: the entity.
        now: monotonic seconds.

    Attributes:
        reply: the request, once it is sent.
    """

    def __init__(
        self,
        session_id: str,
        ask: Callable[[Management], Reply],
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

    def advance(self, now: float, management: Callable[[], Management]) -> bool:
        """Goes on; whether it is done, well or with an `error`.

        Raises:
            IsthmusError: the connection is lost.
        """
        receiver = self._receiver
        if receiver.error is not None:
            return True
        if now >= self.limit:
            self._fault = OperationTimeoutError(f"no answer within {LIMIT_SECONDS:g} s")
            return True
        if self.reply is None and receiver.attached:
            self.reply = self._ask(management())
            self.reply.when_done(self._mark)
        return self.reply is not None and self.reply.done

    @property
    def error(self) -> IsthmusError | None:
        """Why it came to nothing; None where it did not."""
        if self.reply is not None and self.reply.done:
            return self.reply.error
        return self._receiver.error or self._fault

    @property
    def is_taken(self) -> bool:
        """Whether another receiver holds the session."""
        return self.reply is None and isinstance(self._receiver.error, LockLostError)

    def close(self) -> None:
        """Gives the session back."""
        if self._receiver.client.error is None:
            self._receiver.close()
