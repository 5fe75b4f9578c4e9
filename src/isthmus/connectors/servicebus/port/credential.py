"""Tokens without blocking, for long-lived connections.

What it is: a credential of an identity that returns its present token, and fetches the next one in time in a thread, because a token service
may take seconds. And a credential of a secret that may be replaced: a connection that many routes share outlives the key with which it was
made. What it is not: the making of tokens (`isthmus.transport.credential`).

Invariants:
    I1. `token` never blocks.
    I2. A token that has expired is not returned.
    I3. A replaced secret is used for the second token requested after the change, `REREAD_SECONDS` after the secret was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from isthmus.transport.credential import Credential, Token, TokenError

__all__ = ["REREAD_SECONDS", "BackgroundCredential", "RereadCredential"]

# The next token is fetched when this part of the last one's lifetime is left, but at least so long before its expiry.
LEFT_PART = 0.2
LEFT_SECONDS = 300.0
RETRY_SECONDS = 5.0
# Each opening route, and each query of an event hub, needs a token: a vault is not called for all of them.
REREAD_SECONDS = 10.0


class BackgroundCredential:
    """Returns tokens that are not bound to an audience.

    Args:
        inner: makes the tokens; blocks.
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
            TokenError: no token is available now.
        """
        now = time.time()
        token = self._inner.token("", now)
        with self._lock:
            self._token = token
            life = token.expires_at - now if token is not None else 0.0
            self._fetch_at = now + life - max(LEFT_PART * life, min(LEFT_SECONDS, life / 2))

    def token(self, audience: str, now: float) -> Token | None:
        """The present token.

        Raises:
            TokenError: there is none, or it has expired; the next one is being fetched.
        """
        with self._lock:
            token = self._token
            if now >= self._fetch_at:
                self._fetch_at = now + RETRY_SECONDS
                _starts(self._fetch, "token")
        if token is None or token.expires_at <= now:
            raise TokenError(self._fault)
        return token

    def _fetch(self) -> None:
        try:
            self.fetch()
        except TokenError as error:
            self._fault = str(error.attributes.get("reason"))


class RereadCredential:
    """Returns tokens of a secret, which is read again whenever a token is requested.

    Args:
        inner: the credential of the secret as it was read.
        read: makes the credential of the current secret; blocks. None: the secret is for another namespace.
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
        """A token of the secret as it was last read.

        Raises:
            TokenError: no token is available now.
        """
        with self._lock:
            inner = self._inner
            if not self._is_reading and self._clock() - self._read_at >= REREAD_SECONDS:
                self._is_reading = _starts(self._reread, "secret")
        return inner.token(audience, now)

    def _reread(self) -> None:
        found: Credential | None = None
        try:
            found = self._read()
        except Exception:  # noqa: BLE001 - a vault or file is unreachable: the secret read before is used
            found = None
        with self._lock:
            self._inner = found or self._inner
            self._read_at, self._is_reading = self._clock(), False


def _starts(run: Callable[[], None], name: str) -> bool:
    """Starts a thread; returns False where the limit of threads is reached: a later `token` tries again."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        return False
    return True
