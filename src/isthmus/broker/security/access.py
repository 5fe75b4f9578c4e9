"""The rights of one connection: the grants of its tokens and keys.

What it is: the grants of one connection, the check of a right, and their expiry. What it is not: the check of a
token (`isthmus.broker.security.authority.Authority`).
Spec: docs/explanation/protocol.md, Tokens: Send for sending links, Listen for receiving ones; a token for the same audience replaces
the one before; tokens die with the connection.

Invariants:
    I1. An address is permitted only by a grant that covers it, has the right and has not expired.
    I2. No text contains a token or a key.
    I3. A grant whose key was removed from its rule, or whose rule is gone, permits nothing. Links that it permitted are
        detached at the next check (`drop_revoked`).
"""

from __future__ import annotations

from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Grant, Right
from isthmus.broker.security.sas import PATH_LIMIT_CHARACTERS, canonical_path, parents
from isthmus.clock import Clock
from isthmus.errors import UnauthorizedError

__all__ = ["Access"]

# One token for each entity that a namespace may have.
_GRANTS_LIMIT = 10_000


class Access:
    """The grants of one connection.

    Args:
        authority: checks tokens and keys.
        clock: wall time for expiry.
    """

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock
        self._grants: dict[str, Grant] = {}
        self._has_lost = False

    def present_token(self, token: str, audience: str) -> None:
        """Adds the grant of a token.

        Raises:
            UnauthorizedError: the token has no grant for this audience.
        """
        grant = self._authority.authorise_token(token, audience, self._clock.wall_ms())
        if len(grant.scope_path) > PATH_LIMIT_CHARACTERS:
            raise UnauthorizedError(f"The audience is longer than {PATH_LIMIT_CHARACTERS} characters.")
        if len(self._grants) >= _GRANTS_LIMIT and grant.scope_path not in self._grants:
            raise UnauthorizedError(f"A connection holds at most {_GRANTS_LIMIT} tokens.")
        before = self._grants.get(grant.scope_path)
        self._has_lost = self._has_lost or (before is not None and not before.rights <= grant.rights)
        self._grants[grant.scope_path] = grant

    def present_key(self, key_name: str, key: str) -> None:
        """Adds the grants of a key given directly.

        Raises:
            UnauthorizedError: no rule has this name and key.
        """
        for grant in self._authority.authorise_plain(key_name, key)[:_GRANTS_LIMIT]:
            self._grants[grant.scope_path] = grant

    def permits(self, path: str, right: Right) -> bool:
        """Whether `right` is granted on `path` now."""
        now_ms = self._clock.wall_ms()
        over = (self._grants.get(scope) for scope in parents(canonical_path(path)))
        return any(
            grant and grant.covers(path, right) and not grant.is_expired(now_ms) and self._authority.is_current(grant)
            for grant in over
        )

    def require(self, path: str, right: Right) -> None:
        """Checks a right.

        Raises:
            UnauthorizedError: it is not granted.
        """
        if not self.permits(path, right):
            raise UnauthorizedError(
                f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation on '{path}'."
            )

    def require_any(self, path: str, token: str | None = None) -> None:
        """Checks that there is any right on `path`: of the connection, or of a token for this request only.

        Raises:
            UnauthorizedError: there is none.
        """
        if any(self.permits(path, right) for right in Right):
            return
        if token is None:
            self.require(path, Right.LISTEN)
        else:
            self._authority.authorise_token(token, path, self._clock.wall_ms())

    @property
    def has_grant(self) -> bool:
        """Whether any grant is still valid."""
        now_ms = self._clock.wall_ms()
        return any(not grant.is_expired(now_ms) for grant in self._grants.values())

    def take_lost(self) -> bool:
        """Whether, since the last call, a token replaced one with more rights."""
        lost, self._has_lost = self._has_lost, False
        return lost

    def drop_revoked(self) -> bool:
        """Removes grants whose rule or key is gone; returns whether there were any."""
        kept = {scope: grant for scope, grant in self._grants.items() if self._authority.is_current(grant)}
        dropped = len(kept) < len(self._grants)
        self._grants = kept
        return dropped

    def drop_expired(self) -> bool:
        """Removes expired grants; returns whether there were any."""
        now_ms = self._clock.wall_ms()
        kept = {scope: grant for scope, grant in self._grants.items() if not grant.is_expired(now_ms)}
        dropped = len(kept) < len(self._grants)
        self._grants = kept
        return dropped
