"""JWE compact serialization with a shared key, without other parts of JOSE.

What it is: `alg` `dir` with AES-GCM, sealed and opened. What it is not: key agreement, key wrapping, compression, nested tokens; a
token that asks for one is refused.
Specification: RFC 7516, sections 3.1, 5.1 and 5.2; RFC 7518, sections 4.5 and 5.3.

Invariants:
    I1. `unseal` opens a token of `seal` to the same bytes and header, with the same key only.
    I2. A token with `crit`, `zip`, another `alg` or an unknown `enc` is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["KEY_BYTES", "NONCE_BYTES", "TAG_BYTES", "JweError", "header_of", "seal", "unseal"]

KEY_BYTES = {"A128GCM": 16, "A192GCM": 24, "A256GCM": 32}
NONCE_BYTES = 12
TAG_BYTES = 16
_PARTS = 5


class JweError(ValueError):
    """A token is no JWE of the supported kind, or is not sealed with this key."""


def seal(
    plain: bytes,
    cipher: AESGCM,
    header: dict[str, Any],
    random: Callable[[int], bytes] = os.urandom,
) -> bytes:
    """A token.

    Args:
        plain: the bytes to seal.
        cipher: the cipher of the key.
        header: its protected header, without `alg`; `enc` names the algorithm that fits the key.
        random: returns the nonce.
    """
    protected = _protected(tuple(header.items()))
    nonce = random(NONCE_BYTES)
    sealed = cipher.encrypt(nonce, plain, protected)
    return b".".join((protected, b"", _encode(nonce), _encode(sealed[:-TAG_BYTES]), _encode(sealed[-TAG_BYTES:])))


def header_of(token: bytes) -> dict[str, Any]:
    """The protected header of a token, not authenticated yet.

    Raises:
        JweError: it is no token of this kind.
    """
    parts = token.split(b".")
    if len(parts) != _PARTS or parts[1]:
        raise JweError("the body is no JWE in compact serialization with alg dir")
    try:
        header = json.loads(_decode(parts[0]))
    except ValueError:
        raise JweError("the header of the JWE is malformed") from None
    if not isinstance(header, dict) or header.get("alg") != "dir" or header.get("enc") not in KEY_BYTES:
        raise JweError(f"the JWE is not sealed with alg dir and enc {', '.join(KEY_BYTES)}")
    if "crit" in header or "zip" in header:
        raise JweError("the JWE needs an extension (crit, zip) that is not supported here")
    return header


def unseal(token: bytes, cipher: AESGCM) -> bytes:
    """The content of a token.

    Raises:
        JweError: it is no token of this kind, or is not sealed with this key.
    """
    header_of(token)
    protected, _, nonce, text, tag = token.split(b".")
    try:
        pieces = [_decode(each) for each in (nonce, text, tag)]
    except ValueError:
        raise JweError("the JWE is malformed") from None
    if len(pieces[0]) != NONCE_BYTES or len(pieces[2]) != TAG_BYTES:
        raise JweError("the JWE is malformed")
    try:
        return cipher.decrypt(pieces[0], pieces[1] + pieces[2], protected)
    except InvalidTag:
        raise JweError("the JWE is sealed with another key, or was changed") from None


@lru_cache(64)
def _protected(header: tuple[tuple[str, Any], ...]) -> bytes:
    """The first part of a token; cached, since few headers differ."""
    return _encode(json.dumps({"alg": "dir", **dict(header)}, separators=(",", ":")).encode())


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.translate(_URLSAFE) + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


_URLSAFE = bytes.maketrans(b"-_", b"+/")
