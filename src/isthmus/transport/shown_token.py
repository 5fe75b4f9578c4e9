"""The tokens that a connection has shown, and their renewal.

What it is: which audience has which token, when it is renewed, and what happens when renewal is refused. What it is not: making tokens
(`credential`), or a loop (`client`). Spec: docs/explanation/protocol.md, Tokens. Times are seconds since the epoch, as those of tokens.

Invariants:
    I1. A token is renewed 5 s before it expires, or with a tenth of a longer life and a third of a shorter one left,
        before the peer drops the links it covers.
    I2. A token that cannot be renewed (a ready signature, or the token service fails) is tried again before it expires, with pauses.
    I3. On a connection that several owners share a token that is refused costs only the links that it covers; otherwise the connection.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from isthmus.amqp.types import Timestamp
from isthmus.errors import EntityNotFoundError, IsthmusError, UnauthorizedError
from isthmus.transport.request import Reply, RequestLink

if TYPE_CHECKING:
    from isthmus.transport.client import Client

__all__ = ["ShownTokens"]

# The time that a renewal may take on a machine that stalls for a while.
RENEWAL_SECONDS = 5.0
# The shortest pause between two attempts to get a token from a service that fails.
RENEWAL_RETRY_SECONDS = 0.2


class _Grant:
    """A token shown for one audience; `held_until`: when the token that it replaces expires, 0 where there is none."""

    __slots__ = ("expires_at", "held_until", "is_refused", "renew_at", "reply")

    def __init__(self, reply: Reply, expires_at: float, now: float, held_until: float = 0.0) -> None:
        self.reply = reply
        self.expires_at = expires_at
        self.held_until = held_until
        self.is_refused = False
        # Not at once: a ready signature cannot be renewed, and is shown again before it expires, with a pause in between.
        life = expires_at - now
        self.renew_at = max(now + 1.0, expires_at - max(life / 10, min(RENEWAL_SECONDS, life / 3)))

    def put_off(self, now: float) -> None:
        """Tries again later: there is no new token now, and the one that the peer has is still valid."""
        good_until = self.held_until if self.is_refused else self.expires_at
        self.renew_at = now + max(RENEWAL_RETRY_SECONDS, (good_until - now) / 10)


class ShownTokens:
    """The tokens of one connection.

    Args:
        client: the connection, whose endpoint has the credential.

    Attributes:
        due: when `renew` has something to do; infinite: never.
    """

    def __init__(self, client: Client) -> None:
        self.due = math.inf
        self._client = client
        self._links: RequestLink | None = None
        self._grants: dict[str, _Grant] = {}

    def start(self, path: str) -> Reply | None:
        """Shows a token for the entity at `path`; the answer is for `finish`. None: no token is needed.

        Raises:
            TokenError: the credential has no token.
        """
        audience = self._client.endpoint.audience(path)
        grant = self._grants.get(audience)
        if grant is None or grant.reply.error is not None or grant.expires_at <= time.time():
            grant = self._show(audience)
        return None if grant is None else grant.reply

    def finish(self, path: str, reply: Reply) -> None:
        """Checks the answer of `start`.

        Raises:
            UnauthorizedError: the token was refused.
            EntityNotFoundError: there is no such entity.
            IsthmusError: another refusal, or the connection's error.
        """
        error = reply.error
        if error is None:
            return
        self._forget(self._client.endpoint.audience(path), reply)
        if isinstance(error, EntityNotFoundError):
            raise EntityNotFoundError(path)
        raise error if error.retryable else UnauthorizedError(f"'{path}': {error}")

    def withdraw(self, path: str) -> None:
        """Stops renewing the token for the entity at `path`. No error if there is none."""
        self._forget(self._client.endpoint.audience(path))

    def renew(self) -> IsthmusError | None:
        """Renews what is due; the error that ends the connection, if one does."""
        now = time.time()
        if now < self.due:
            return None
        for audience, grant in list(self._grants.items()):
            if not grant.reply.done:
                continue
            if grant.reply.error is not None and not self._client.shared:
                return grant.reply.error
            if grant.renew_at <= now < grant.expires_at:
                try:
                    self._show(audience)
                except IsthmusError:
                    grant.put_off(now)
        self._schedule()
        return None

    def _forget(self, audience: str, reply: Reply | None = None) -> None:
        grant = self._grants.get(audience)
        if grant is not None and (reply is None or grant.reply is reply):
            del self._grants[audience]
            self._schedule()

    def _schedule(self) -> None:
        now = time.time()
        # An expired token is not renewed: the peer ends the links that it covered.
        self.due = min((grant.renew_at for grant in self._grants.values() if now < grant.expires_at), default=math.inf)

    def _show(self, audience: str) -> _Grant | None:
        now = time.time()
        token = self._client.endpoint.credential.token(audience, now)
        if token is None:
            return None
        properties = {
            "operation": "put-token",
            "type": token.kind,
            "name": audience,
            "expiration": Timestamp(int(token.expires_at * 1000)),
        }
        reply = self._node().request(properties, token.text)
        before = self._grants.get(audience)
        held_until = 0.0 if before is None else before.held_until if before.is_refused else before.expires_at
        grant = self._grants[audience] = _Grant(reply, token.expires_at, now, held_until)
        self.due = min(self.due, grant.renew_at)
        reply.when_done(lambda: self._on_answered(audience, reply))
        return grant

    def _node(self) -> RequestLink:
        links = self._links
        if links is not None and links.error is not None and self._client.error is None:
            links.close()  # the peer has ended the links, and not the connection
            links = None
        if links is None:
            links = self._links = RequestLink(self._client, "$cbs", "$cbs")
        return links

    def _on_answered(self, audience: str, reply: Reply) -> None:
        grant = self._grants.get(audience)
        if grant is None or grant.reply is not reply or reply.error is None:
            return
        now = time.time()
        if not self._client.shared:
            self.due = 0.0  # `renew` returns the error that ends the connection
        elif grant.held_until <= now:
            self._forget(audience)
        else:
            grant.is_refused = True
            grant.put_off(now)
            self._schedule()
