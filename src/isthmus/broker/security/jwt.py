"""JSON web tokens of one issuer that the operator names.

What it is: the check of a token's signature (by PyJWT), issuer, audience and times against keys from a file, and the rights that
in its claims. What it is not: a client of an identity provider: nothing is fetched, and no roles are looked up.
Times are compared with the namespace's clock, which is an argument here and is not in PyJWT.
Spec: RFC 7515 (compact serialisation), 7517 (key sets), 7518 (RS256, ES256), 7519 (claims); docs/explanation/protocol.md, Tokens.

Invariants:
    I1. Only RS256 with an RSA key and ES256 with a P-256 key verify: the token's header chooses among keys, never a
        weaker algorithm.
    I2. Nothing in a token is trusted before its signature is checked; issuer, audience and expiry are required.
    I3. No error text contains the token or a claim that its maker chose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from isthmus.broker.security.grant import Right
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.broker.security.sas import (
    TOKEN_LIMIT_BYTES,
    ExpiredTokenError,
    InvalidSignatureError,
    MalformedTokenError,
    TokenError,
)
from isthmus.errors import ConfigError, Fault

__all__ = ["InvalidIssuerError", "Issuer", "UnmatchedAudienceError"]

_JWS = jwt.PyJWS(algorithms=["RS256", "ES256"])
_Key = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
_LEAST_RSA_BITS = 2048
# How far the issuer's clock may be ahead of ours; an expiry has no tolerance.
_SKEW_SECONDS = 300
_LATEST_SECONDS = 253_402_300_799
_ROLES: Mapping[str, frozenset[Right]] = {
    "send": frozenset({Right.SEND}),
    "listen": frozenset({Right.LISTEN}),
    "manage": frozenset(Right),
    "azure service bus data sender": frozenset({Right.SEND}),
    "azure service bus data receiver": frozenset({Right.LISTEN}),
    "azure service bus data owner": frozenset(Right),
}


class InvalidIssuerError(TokenError):
    """The token is of an issuer that this namespace does not know."""

    reason = "InvalidIssuer"
    explanation = "The token's issuer is not trusted by this namespace."


class UnmatchedAudienceError(TokenError):
    """The token was not issued for this namespace."""

    reason = "InvalidAudience"
    explanation = "The authorization header contains a token with an invalid audience."


class Claims(NamedTuple):
    """The claims of a valid token."""

    subject: str
    rights: frozenset[Right]
    expires_at_ms: int


class Issuer:
    """Checks the tokens of one issuer.

    Args:
        settings: of the issuer.

    Raises:
        ConfigError: the file of keys cannot be read or holds no key that can be used.
    """

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._stamp = 0
        self._keys: list[tuple[str, _Key]] = []
        self.refresh()

    def refresh(self) -> bool:
        """Reads the file of keys again if it has changed; returns whether it had.

        Raises:
            ConfigError: it cannot be read or has no key; the previous keys stay.
        """
        file = self._settings.keys
        try:
            stamp = file.stat().st_mtime_ns
            if stamp == self._stamp:
                return False
            keys = _read_keys(file.read_bytes())
        except (OSError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm, jwt.PyJWTError):
            raise ConfigError([Fault("not a public key in PEM nor a key set in JSON", file=str(file))]) from None
        if not keys:
            fault = Fault("no key for RS256 (2048 bits or more) or ES256 (P-256)", file=str(file))
            raise ConfigError([fault])
        self._stamp, self._keys = stamp, keys
        return True

    def check(self, token: str, now_ms: int) -> Claims:
        """The claims of a token, if it is valid.

        Raises:
            TokenError: of the kind that says why.
        """
        if len(token) > TOKEN_LIMIT_BYTES:
            raise MalformedTokenError(f"The token is longer than {TOKEN_LIMIT_BYTES} characters.")
        # Bytes of a header that are not UTF-8 arrive as lone surrogates.
        if token.count(".") != 2 or not token.isascii():
            raise MalformedTokenError("The token is of no kind that this namespace knows.")
        try:
            header = _JWS.get_unverified_header(token)
        except (jwt.DecodeError, RecursionError):
            raise MalformedTokenError("The token's header cannot be read.") from None
        except jwt.PyJWTError:  # it names a critical extension, or a key id that is not a string
            raise InvalidSignatureError from None
        return self._read(self._verified(token, header), now_ms)

    def _verified(self, token: str, header: Mapping[str, Any]) -> dict[str, Any]:
        """The claims of a token that one of the keys has signed."""
        if "crit" in header or "b64" in header:
            raise InvalidSignatureError
        kid = header.get("kid")
        for name, key in self._keys:
            if kid is None or name in {"", kid}:
                algorithm = "RS256" if isinstance(key, rsa.RSAPublicKey) else "ES256"
                try:
                    payload: bytes = _JWS.decode(token, key, algorithms=[algorithm])
                except jwt.PyJWTError:
                    continue
                return _object(payload)
        raise InvalidSignatureError

    def _read(self, claims: dict[str, Any], now_ms: int) -> Claims:
        if claims.get("iss") != self._settings.issuer:
            raise InvalidIssuerError
        named = claims.get("aud")
        if not any(each in self._settings.audiences for each in (named if isinstance(named, list) else [named])):
            raise UnmatchedAudienceError
        expires_at_ms, starts_at_ms = _time_ms(claims.get("exp")), _time_ms(claims.get("nbf", 0))
        if now_ms >= expires_at_ms:
            raise ExpiredTokenError(expires_at_ms)
        if starts_at_ms > now_ms + _SKEW_SECONDS * 1000:
            raise MalformedTokenError("The token is not valid yet.")
        subject = claims.get("sub") or claims.get("oid") or claims.get("appid") or ""
        return Claims(str(subject)[:256], _rights(claims.get(self._settings.rights_claim)), expires_at_ms)


def _rights(value: object) -> frozenset[Right]:
    names: Sequence[object] = value if isinstance(value, list) else []
    if isinstance(value, str):
        # One role's name may have spaces itself.
        names = [value, *value.split()]
    return frozenset(right for name in names if isinstance(name, str) for right in _ROLES.get(name.lower(), ()))


def _time_ms(value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LATEST_SECONDS:
        return int(value * 1000)
    raise MalformedTokenError("The claim 'exp' or 'nbf' is no number of seconds since 1970-01-01.")


def _object(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise MalformedTokenError("The token's claims are no JSON object.")
    return value


def _read_keys(data: bytes) -> list[tuple[str, _Key]]:
    """Keys that can be used, each with its name; "" where it has none."""
    if not data.lstrip().startswith(b"{"):
        found: list[tuple[str, Any]] = [("", load_pem_public_key(data))]
    else:
        content = json.loads(data)
        found = [(str(each.get("kid", "")), _read_jwk(each)) for each in content.get("keys", [content])]
    return [(name, key) for name, key in found if _is_usable(key)]


def _is_usable(key: object) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _LEAST_RSA_BITS
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def _read_jwk(key: dict[str, Any]) -> object:
    """One key of a set; None for one of another kind or for encryption."""
    if key.get("use", "sig") != "sig":
        return None
    if key.get("kty") == "RSA":
        return jwt.PyJWK(key, algorithm="RS256").key
    if key.get("kty") == "EC" and key.get("crv") == "P-256":
        return jwt.PyJWK(key, algorithm="ES256").key
    return None
