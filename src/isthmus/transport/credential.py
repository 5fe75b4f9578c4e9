"""The credentials of a client.

What it is: makers of tokens for `put-token` (docs/explanation/protocol.md, Tokens): a shared key signs locally, so that no outage of a token
service stops an application; a ready signature is passed on; an identity (azure-identity, or anything with its
`get_token`) is asked. What it is not: storage of secrets; the code that makes a credential resolves the reference.

Invariants:
    I1. No repr and no pickle of a credential holds its key.
    I2. A token comes with its expiry, so that it can be renewed in time.
    I3. Whatever an identity's library raises is a `TokenError`, so that callers may try again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import quote

from isthmus.errors import IsthmusError

__all__ = [
    "Credential",
    "IdentityCredential",
    "NoCredential",
    "SharedKeyCredential",
    "SignatureCredential",
    "Token",
    "TokenError",
    "told_of_token",
]

SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
# The SDKs' own lifetime; short enough that a rotated key matters soon, long enough that renewals cost little.
TOKEN_LIFETIME_SECONDS = 3600
SCOPE = "https://servicebus.azure.net/.default"
_NEVER = 253402300799.0
_TOLD_CHARACTERS = 300
# What credentials of a chain say that found nothing of theirs on the machine.
_ABSENT = re.compile(r"unavailable|not found|be found|not installed|to be installed|is required|[Pp]lease run")


class Token(NamedTuple):
    """A token as `put-token` takes it; `expires_at` is in seconds since the epoch."""

    text: str
    kind: str
    expires_at: float


class TokenError(IsthmusError):
    """The identity's token service gave no token."""

    code = "no-token"
    retryable = True

    def __init__(self, reason: str = "") -> None:
        super().__init__("", reason=reason)

    def text(self) -> str:
        return f"no token for the identity: {self.attributes.get('reason')}"


class Credential(Protocol):
    """Makes tokens."""

    def token(self, audience: str, now: float) -> Token | None:
        """A token for `audience` (`sb://host/entity`) made at `now` (epoch seconds); None: no token is needed.

        Raises:
            TokenError: no token can be made now.
        """
        ...


class _Unpicklable:
    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential is not pickled; pass the reference to the secret and resolve it where it is used")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class SharedKeyCredential(_Unpicklable):
    """A shared access policy's name and key.

    Args:
        name: the policy's name.
        key: its key.
        lifetime_seconds: how long a token made from it is good.
    """

    def __init__(self, name: str, key: str, lifetime_seconds: float = TOKEN_LIFETIME_SECONDS) -> None:
        self.name = name
        self._key = key.encode()
        self._lifetime_seconds = lifetime_seconds

    def token(self, audience: str, now: float) -> Token:
        expires_at = int(now + self._lifetime_seconds)
        resource = quote(audience, safe="")
        signature = hmac.new(self._key, f"{resource}\n{expires_at}".encode(), hashlib.sha256).digest()
        sig = quote(base64.b64encode(signature).decode(), safe="")
        text = f"SharedAccessSignature sr={resource}&sig={sig}&se={expires_at}&skn={quote(self.name, safe='')}"
        return Token(text, SAS_TYPE, float(expires_at))


class SignatureCredential(_Unpicklable):
    """A token made elsewhere (`SharedAccessSignature=` of a connection string); it cannot be renewed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def token(self, audience: str, now: float) -> Token:
        fields = dict(part.partition("=")[::2] for part in self._text.partition(" ")[2].split("&"))
        expiry = fields.get("se", "")
        return Token(self._text, SAS_TYPE, float(expiry) if expiry.isdigit() else _NEVER)


class IdentityCredential(_Unpicklable):
    """Microsoft Entra tokens.

    Args:
        identity: an object with azure-identity's `get_token(scope)`.
    """

    def __init__(self, identity: Any) -> None:
        self._identity = identity

    def token(self, audience: str, now: float) -> Token:
        try:
            made = self._identity.get_token(SCOPE)
        except Exception as error:  # noqa: BLE001 - azure-identity's errors, and those of what it asks
            raise TokenError(told_of_token(error)) from None
        return Token(made.token, JWT_TYPE, float(made.expires_on))


class NoCredential:
    """For peers that need no token."""

    def token(self, audience: str, now: float) -> None:
        return None


def told_of_token(error: BaseException) -> str:
    """Why an identity gave no token, in one line.

    The first line of what a chain of credentials raises (`DefaultAzureCredential`) says of none what it met; that of each follows.
    """
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    attempts = [line.strip() for line in rest if line.startswith("\t")]
    if not attempts:
        return first[:_TOLD_CHARACTERS]
    met = [each for each in attempts if not _ABSENT.search(each)]
    return "; ".join(met)[:_TOLD_CHARACTERS] or "no Azure identity on this machine; az login, or a managed identity"
