"""Tokens of an identity without waiting for them.

What it is: a credential that hands out the token that it has, and has a thread fetch the next one in time; asking a token service
takes seconds when that is slow. What it is not: for shared keys, which sign at once.

Invariants:
    I1. `token` never blocks.
    I2. A token that has expired is not handed out.
"""

from __future__ import annotations

import threading
import time

from isthmus.transport.credential import Credential, Token, TokenError

__all__ = ["BackgroundCredential"]

# The next token is fetched when so much of the life of the last is left, but so long before its end at least.
LEFT_PART = 0.2
LEFT_SECONDS = 300.0
RETRY_SECONDS = 5.0


class BackgroundCredential:
    """Hands out tokens that are not bound to an audience.

    Args:
        inner: makes them; blocks.
    """

    def __init__(self, inner: Credential) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._fetch_at = 0.0
        self._fault = "it is being fetched"

    def fetch(self) -> None:
        """Fetches a token; blocks.

        Raises:
            TokenError: there is none now.
        """
        now = time.time()
        token = self._inner.token("", now)
        with self._lock:
            self._token = token
            life = token.expires_at - now if token is not None else 0.0
            self._fetch_at = now + life - max(LEFT_PART * life, min(LEFT_SECONDS, life / 2))

    def token(self, audience: str, now: float) -> Token | None:
        """The token that there is.

        Raises:
            TokenError: there is none, or it has expired; the next is being fetched.
        """
        with self._lock:
            token = self._token
            if now >= self._fetch_at:
                self._fetch_at = now + RETRY_SECONDS
                threading.Thread(target=self._fetch, name="token", daemon=True).start()
        if token is None or token.expires_at <= now:
            raise TokenError(self._fault)
        return token

    def _fetch(self) -> None:
        try:
            self.fetch()
        except TokenError as error:
            self._fault = str(error.attributes.get("reason"))
