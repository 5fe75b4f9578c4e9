"""Keys of the steps `encrypt` and `decrypt`, behind references.

What it is: a key that is resolved where it is used, and again when it may have been rotated. What it is not: a store; a key is in no option,
plan, checkpoint or log.
Specification: RFC 7517 (JSON Web Key), section 4; RFC 7518, section 6.4.

Invariants:
    I1. No error contains any part of a key.
    I2. If a key cannot be read again, or is invalid, the previous one stays in use; that is logged once.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from isthmus.connectors.secret import SecretReference, resolve
from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["Key", "KeyRing", "parse_key"]

FILE_SECONDS = 60.0
VAULT_SECONDS = 300.0
# The factor by which a key that does not fit is read more often: the sender may use the next key already.
EARLY = 30
_SIZES = (16, 24, 32)
_HEX = re.compile(r"[0-9A-Fa-f]+")

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """A key.

    Attributes:
        octets: 16, 24 or 32 bytes.
        key_id: the `kid` of a JSON Web Key; empty without one.
    """

    octets: bytes
    key_id: str = ""

    def __repr__(self) -> str:
        return f"Key({self.key_id!r})"


class KeyRing:
    """One key behind a reference.

    Args:
        reference: reference to the key.
        clock: monotonic seconds.
        check: raises InvalidArgumentError for an invalid key.

    Raises:
        SecretError: the reference cannot be resolved.
        InvalidArgumentError: the secret is no key.
    """

    def __init__(
        self,
        reference: str,
        clock: Callable[[], float] = time.monotonic,
        check: Callable[[Key], None] = lambda key: None,
    ) -> None:
        self._reference = SecretReference.parse(reference)
        self._clock = clock
        self._check = check
        self._spacing = VAULT_SECONDS if self._reference.scheme == "keyvault" else FILE_SECONDS
        self._key = self._read()
        self._read_at = clock()
        self._is_logged = False

    def get(self) -> Key:
        """The current key."""
        if self._clock() >= self._read_at + self._spacing:
            self._renew()
        return self._key

    def other(self) -> Key | None:
        """The key, read again early because it did not fit, if it has changed."""
        if self._clock() < self._read_at + self._spacing / EARLY:
            return None
        before = self._key
        self._renew()
        return self._key if self._key.octets != before.octets else None

    def _renew(self) -> None:
        self._read_at = self._clock()
        try:
            self._key = self._read()
            self._is_logged = False
        except IsthmusError as error:
            if not self._is_logged:
                log.warning("a key cannot be read again; the previous key stays in use (%s)", error)
            self._is_logged = True

    def _read(self) -> Key:
        key = parse_key(resolve(self._reference).reveal(), str(self._reference))
        self._check(key)
        return key


def parse_key(text: str, reference: str) -> Key:
    """A key from a JSON Web Key, or from hexadecimal, base64 or base64url text.

    Raises:
        InvalidArgumentError: the text is no key, or has another length than 128, 192 or 256 bits.
    """
    key_id = ""
    if text.lstrip().startswith("{"):
        try:
            web_key = json.loads(text)
            if web_key.get("kty") != "oct":
                raise InvalidArgumentError(f"{reference}: the JSON Web Key is not of the type oct")
            text, key_id = web_key["k"], str(web_key.get("kid", ""))
        except (ValueError, KeyError, TypeError):
            raise InvalidArgumentError(f"{reference}: the JSON Web Key is malformed") from None
    text = text.strip()
    try:
        octets = bytes.fromhex(text) if _HEX.fullmatch(text) and len(text) // 2 in _SIZES else _base64(text)
    except (binascii.Error, ValueError):
        octets = b""
    if len(octets) not in _SIZES:
        raise InvalidArgumentError(
            f"{reference}: this is no key of 128, 192 or 256 bits; write one with: openssl rand -base64 32"
        )
    return Key(octets, key_id)


def _base64(text: str) -> bytes:
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
