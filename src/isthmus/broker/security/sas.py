"""Shared access signature tokens.

What it is: parsing, checking and making of ``SharedAccessSignature sr=..&sig=..&se=..&skn=..``. Pure: time and keys are
arguments. What it is not: rules and rights (`rule`, `grant`).
Spec: Service Bus SAS (service-bus-sas.md); the signature is HMAC-SHA256 over the ``sr`` text exactly as received, a line
feed and the ``se`` text.

Invariants:
    I1. A scope covers a path only at path boundaries: a token for ``/orders`` covers ``/orders/$management`` but never
        ``/orders-secret``.
    I2. Signatures are compared in constant time.
    I3. Scheme, host, port, query and case of an audience or an address are not compared; a token's resource is
        parsed by `isthmus.broker.security.resource`.
    I4. No error text contains the token or a part of its signature.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import quote, unquote

from isthmus.errors import UnauthorizedError

__all__ = [
    "PATH_LIMIT_CHARACTERS",
    "TOKEN_PREFIX",
    "ExpiredTokenError",
    "InvalidAudienceError",
    "InvalidSignatureError",
    "MalformedTokenError",
    "MisplacedHostError",
    "SasToken",
    "TokenError",
    "canonical_path",
    "covers",
    "make_token",
    "parents",
    "sign",
]

TOKEN_PREFIX = "SharedAccessSignature "

# The service takes keys of 256 bits and audiences of at most a URL; no legitimate token comes near this.
TOKEN_LIMIT_BYTES = 16 * 1024
# The path of a subscription has about 350 characters at most; for a longer one every parent of it would be checked.
PATH_LIMIT_CHARACTERS = 1024

_AUTHORITY = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*")
_SLASHES = re.compile(r"/{2,}")


class TokenError(UnauthorizedError):
    """A token that grants nothing; the text starts with the service's name for the reason."""

    reason: ClassVar[str] = "InvalidToken"
    explanation: ClassVar[str] = "The token is invalid."

    def text(self) -> str:
        return f"{self.reason}: {self.message or self.explanation}"


class MalformedTokenError(TokenError):
    """The text is not a token at all, or a field is missing, doubled or unreadable."""

    reason = "MalformedToken"
    explanation = "The token is malformed."


class InvalidSignatureError(TokenError):
    """No key of that name made this signature; an unknown key name gets the same answer."""

    reason = "InvalidSignature"
    explanation = "The token has an invalid signature."


class ExpiredTokenError(TokenError):
    """The token has expired."""

    reason = "ExpiredToken"

    def __init__(self, expires_at_ms: int = 0) -> None:
        when = datetime.fromtimestamp(min(expires_at_ms, 253402300799000) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        super().__init__(f"The token is expired. Expiration time: '{when}'.", expires_at_ms=expires_at_ms)


class InvalidAudienceError(TokenError):
    """The token was not made for the audience that it is shown for."""

    reason = "InvalidAudience"

    def __init__(self, scope: str = "", audience: str = "") -> None:
        text = f"The token is for '/{scope}', which does not cover '/{audience}'."
        super().__init__(text, scope=scope, audience=audience)


class MisplacedHostError(TokenError):
    """The token names an entity instead of the host."""

    reason = "InvalidAudience"

    def __init__(self, name: str = "") -> None:
        text = (
            f"The token's resource has the host '{name}', which is the name of an entity and no host of this namespace. "
            "Write sb://<host>/<entity>, or name the host with --host-name."
        )
        super().__init__(text, name=name)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A token's fields.

    Attributes:
        resource: the ``sr`` text exactly as received, still percent-encoded: this is what was signed.
        expiry: the ``se`` text exactly as received.
        expires_at_ms: the same as milliseconds since the epoch.
        key_name: the rule's name, decoded.
        signature: the signature, decoded to base64 text.
    """

    resource: str
    expiry: str
    expires_at_ms: int
    key_name: str
    signature: str

    @classmethod
    def parse(cls, token: str) -> SasToken:
        """Parses a token, its fields in any order.

        Raises:
            MalformedTokenError: with the fault.
        """
        if not token.startswith(TOKEN_PREFIX):
            raise MalformedTokenError("The token does not start with 'SharedAccessSignature '.")
        if len(token) > TOKEN_LIMIT_BYTES:
            raise MalformedTokenError(f"The token is longer than {TOKEN_LIMIT_BYTES} characters.")
        try:
            token.encode()
        except UnicodeEncodeError:  # bytes of a header that are no UTF-8 arrive as lone surrogates
            raise MalformedTokenError("The token is no text.") from None
        fields: dict[str, str] = {}
        for part in token[len(TOKEN_PREFIX) :].strip().split("&"):
            name, _, value = part.partition("=")
            name = name.strip().lower()
            if name in fields:
                raise MalformedTokenError(f"The token has the field '{name[:16]}' twice.")
            fields[name] = value
        for name in ("sr", "sig", "se", "skn"):
            if not fields.get(name):
                raise MalformedTokenError(f"The token lacks the field '{name}'.")
        expiry = fields["se"]
        if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 12):
            raise MalformedTokenError("The field 'se' is no number of seconds since 1970-01-01.")
        return cls(fields["sr"], expiry, int(expiry) * 1000, unquote(fields["skn"]), unquote(fields["sig"]))

    def is_signed_by(self, key: str) -> bool:
        """Whether `key` made the signature."""
        expected = sign(key, self.resource, self.expiry)
        return hmac.compare_digest(expected.encode(), self.signature.encode())

    def is_expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_at_ms


def canonical_path(resource: str) -> str:
    """The canonical form of the path of an audience, an address or a scope, for comparison.

    Scheme, authority, query and fragment are dropped, percent escapes are decoded, letters are lower-cased, and slashes
    at either end are stripped: ``sb://Host:5671/Orders/`` is ``orders``. Without a scheme the text is a path.
    """
    path = _AUTHORITY.sub("", resource.strip(), count=1)
    path = re.split(r"[?#]", path, maxsplit=1)[0]
    return _SLASHES.sub("/", unquote(path)).strip().strip("/").lower()


def covers(scope: str, path: str) -> bool:
    """Whether canonical `scope` is canonical `path` or one of its parents; ``""`` covers everything."""
    return not scope or path == scope or path.startswith(scope + "/")


def parents(path: str) -> Iterator[str]:
    """The scopes that cover a canonical path: ``""``, its parents, and itself, unless it is longer than that of any entity."""
    yield ""
    end = path.find("/", 0, PATH_LIMIT_CHARACTERS)
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1, PATH_LIMIT_CHARACTERS)
    if path and len(path) <= PATH_LIMIT_CHARACTERS:
        yield path


def sign(key: str, resource: str, expiry: str) -> str:
    """The base64 signature over an ``sr`` and an ``se`` text."""
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def make_token(resource: str, key_name: str, key: str, expires_at_ms: int) -> str:
    """Make a token for a URI such as ``sb://host/queue``, valid until `expires_at_ms` (rounded down to seconds)."""
    encoded, expiry = quote(resource, safe=""), str(expires_at_ms // 1000)
    signature = quote(sign(key, encoded, expiry), safe="")
    return f"{TOKEN_PREFIX}sr={encoded}&sig={signature}&se={expiry}&skn={quote(key_name, safe='')}"
