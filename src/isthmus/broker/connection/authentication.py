"""Authentication of a client: SASL, `$cbs`, and tokens in requests.

What it is: each way in which a token or a key arrives, and the result: the client is admitted, the connection is closed, or links are
no longer permitted. What it is not: the check of a token (`isthmus.broker.security.access`), what a client may do before its first
(`early_access`), nor the end of a connection (`isthmus.broker.peer`).
Spec: docs/explanation/protocol.md, Connection, Tokens.

Invariants:
    I1. A client is admitted once, with the first token or key that grants a right.
    I2. Tokens that have expired, whose key was removed, or that were replaced by tokens with fewer rights, permit nothing any more.
    I3. The connection of a client whose tokens grant no right is closed after a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.amqp import SaslInit
from isthmus.broker.connection.early_access import EarlyAccess
from isthmus.broker.link.request import Request, Respond
from isthmus.broker.security import cbs
from isthmus.broker.security.access import Access
from isthmus.errors import IsthmusError, UnauthorizedError

__all__ = ["MECHANISMS", "Authentication"]

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS")
# How long a removed key may still be accepted.
_REVIEW_SECONDS = 2.0


class Authentication:
    """The authentication of one connection.

    Args:
        access: the client's tokens and keys.
        early: the limits before the first token.
        has_entity: whether an entity has a path.
        now: monotonic seconds.
        on_admitted: called once, when the client has shown a token or a key that grants a right.
        on_lost: called with the reason when tokens permit less than before.
        give_up: closes the connection because of the client's behaviour.
    """

    def __init__(
        self,
        access: Access,
        early: EarlyAccess,
        has_entity: Callable[[str], bool],
        now: float,
        *,
        on_admitted: Callable[[], None],
        on_lost: Callable[[str], None],
        give_up: Callable[[IsthmusError], None],
    ) -> None:
        self._access = access
        self._early = early
        self._has_entity = has_entity
        self._on_admitted, self._on_lost, self._give_up = on_admitted, on_lost, give_up
        self._next_review = now + _REVIEW_SECONDS

    def take_sasl(self, event: SaslInit) -> bool:
        """Whether the outcome is success."""
        if event.mechanism == "PLAIN":
            return self._present_plain(event.response or b"")
        return event.mechanism in MECHANISMS

    def answer_cbs(self, request: Request, respond: Respond) -> None:
        """The client shows a token."""
        reply = cbs.put_token(request, self._access, self._has_entity)
        respond(reply)
        if reply.status in (400, 401):
            self._count_failure()
        else:
            self._early.succeed()
        if self._access.take_lost():
            self._on_lost("The token that replaced another one does not permit this.")
        if self._access.has_grant:
            self._admit()

    def require_any(self, path: str, token: str | None) -> None:
        """As `Access.require_any`; a token in a request also meets the connection's deadline."""
        try:
            self._access.require_any(path, token)
        except UnauthorizedError:
            self._count_failure()
            raise
        self._admit()

    def tick(self, now: float) -> None:
        """Checks for expired tokens, and at intervals for removed keys."""
        if self._access.drop_expired():
            self._on_lost("ExpiredToken: The token is expired.")
        if now >= self._next_review:
            self._next_review = now + _REVIEW_SECONDS
            if self._access.drop_revoked():
                self._on_lost("InvalidSignature: The key that signed the token is no longer valid.")

    def release(self) -> None:
        """The connection has ended: no callback is called any more."""
        self._on_admitted = _nothing
        self._on_lost = self._give_up = _nothing_of

    def _present_plain(self, response: bytes) -> bool:
        _, _, rest = response.partition(b"\0")
        name, found, key = rest.partition(b"\0")
        if not found:
            return False
        try:
            self._access.present_key(name.decode(), key.decode())
        except (UnauthorizedError, UnicodeDecodeError):
            return False
        self._admit()
        return True

    def _admit(self) -> None:
        if not self._early.is_over:
            self._early.is_over = True
            self._on_admitted()

    def _count_failure(self) -> None:
        """Counts a token that granted no right; a client with only such tokens is disconnected."""
        error = self._early.fail()
        if error is not None:
            self._give_up(error)


def _nothing() -> None:
    """Nobody is told."""


def _nothing_of(what: object) -> None:
    """Nobody is told."""
