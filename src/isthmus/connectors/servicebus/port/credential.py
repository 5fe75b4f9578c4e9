"""Tokens without waiting, for connections that last.

What it is: a credential of an identity that hands out the token that it has, and has a thread fetch the next one in time; asking a token service
takes seconds when that is slow. And one of a secret that may be replaced: a connection that many routes share outlives the key that it was
made with. What it is not: the making of tokens (`isthmus.transport.credential`).

Invariants:
    I1. `token` never blocks.
    I2. A token that has expired is not handed out.
    I3. A secret that was replaced is used by the second token that is asked for after that, `REREAD_SECONDS` after the secret was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from isthmus.transport.credential import Credential, Token, TokenError

__all__ = ["REREAD_SECONDS", "BackgroundCredential", "RereadCredential"]

# The next token is fetched when so much of the life of the last is left, but so long before its end at least.
LEFT_PART = 0.2
LEFT_SECONDS = 300.0
RETRY_SECONDS = 5.0
# Many routes that open, and looks at an event hub, show a token each: a vault is not asked for all of them.
REREAD_SECONDS = 10.0


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


class RereadCredential:
    """Hands out tokens of a secret, which is read again whenever a token is asked for.

    Args:
        inner: of the secret as it was read.
        read: the same of the secret as it is now; blocks. None: it is for somewhere else.
        clock: monotonic seconds.
    """

    def __init__(
        self, inner: Credential, read: Callable[[], Credential | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._read_at = clock()
        self._is_reading = False

    def token(self, audience: str, now: float) -> Token | None:
        """A token of the secret as it was read last.

        Raises:
            TokenError: there is none now.
        """
        with self._lock:
            inner = self._inner
            if not self._is_reading and self._clock() - self._read_at >= REREAD_SECONDS:
                self._is_reading = True
                threading.Thread(target=self._reread, name="secret", daemon=True).start()
        return inner.token(audience, now)

    def _reread(self) -> None:
        found: Credential | None = None
        try:
            found = self._read()
        except Exception:  # noqa: BLE001 - a vault or file that is away, whatever it says: what was read before is tried
            found = None
        with self._lock:
            self._inner = found or self._inner
            self._read_at, self._is_reading = self._clock(), False
