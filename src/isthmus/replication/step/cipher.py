"""The steps `encrypt` and `decrypt`.

Specification: NIST SP 800-38D (AES-GCM, nonces of 96 random bits); RFC 7516 for the format `jwe` (`isthmus.replication.step.encryption.jwe`).

Invariants:
    I1. A message that could not be encrypted is never sent on in plain text.
    I2. `decrypt` restores the ContentType from before `encrypt`.
    I3. After a rotation, `decrypt` uses the new key for the first message sealed with it, and `encrypt` uses it only if it fits the algorithm.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from isthmus.bridge.delivery_event import Disposition
from isthmus.errors import InvalidArgumentError
from isthmus.replication.step.base import MessageStep, Settings, StepRefusalError
from isthmus.replication.step.encryption import jwe
from isthmus.replication.step.encryption.key import Key, KeyRing
from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import MISSING, REMOVED

__all__ = ["DECRYPTION_FAILED", "open_decrypt", "open_encrypt"]

DECRYPTION_FAILED = "DecryptionFailed"
JOSE = "application/jose"
OCTETS = "application/octet-stream"
_ENCRYPTION, _KEY_ID, _CONTENT_TYPE = "isthmus-encryption", "isthmus-key-id", "isthmus-content-type"


@lru_cache(16)
def _cipher(octets: bytes) -> AESGCM:
    return AESGCM(octets)


def open_encrypt(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.cipher.EncryptStep`."""
    algorithm = settings["algorithm"]

    def check(key: Key) -> None:
        if len(key.octets) != jwe.KEY_BYTES[algorithm]:
            raise InvalidArgumentError(
                f"{settings['key']}: {algorithm} needs a key of {8 * jwe.KEY_BYTES[algorithm]} bits, this one has "
                f"{8 * len(key.octets)}"
            )

    ring = KeyRing(settings["key"], check=check)
    own_id = settings.get("key_id", "")

    def jose(message: StepMessage) -> Disposition | None:
        key = ring.get()
        header = {"enc": algorithm}
        if key_id := own_id or key.key_id:
            header["kid"] = key_id
        if content_type := message.get_property("content_type"):
            header["cty"] = str(content_type)
        message.body = jwe.seal(message.body, _cipher(key.octets), header)
        message.set_property("content_type", JOSE)
        return None

    def plain(message: StepMessage) -> Disposition | None:
        if message.user(_ENCRYPTION) is not MISSING:
            # Its properties name one key and one ContentType, without which the inner body could not be read.
            raise ValueError("the body is encrypted already; use the format jwe to encrypt it twice")
        key = ring.get()
        nonce = os.urandom(jwe.NONCE_BYTES)
        message.body = nonce + _cipher(key.octets).encrypt(nonce, message.body, None)
        message.set_application_property(_ENCRYPTION, algorithm)
        content_type = message.get_property("content_type")
        for name, value in ((_KEY_ID, own_id or key.key_id), (_CONTENT_TYPE, str(content_type or ""))):
            if value or message.user(name) is not MISSING:
                message.set_application_property(name, value or REMOVED)
        message.set_property("content_type", OCTETS)
        return None

    return jose if settings["format"] == "jwe" else plain


def open_decrypt(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.cipher.DecryptStep`."""
    rings = {name: KeyRing(reference) for name, reference in settings.get("keys", {}).items()}
    only = KeyRing(settings["key"]) if settings.get("key") else None

    def opened(key_id: str, unseal: Callable[[AESGCM], bytes]) -> bytes:
        ring = only or rings.get(key_id)
        if ring is None:
            raise StepRefusalError(DECRYPTION_FAILED, f"no key has the id {key_id!r}")
        try:
            return unseal(_cipher(ring.get().octets))
        except (InvalidTag, jwe.JweError):
            other = ring.other()
            if other is None:
                raise
            return unseal(_cipher(other.octets))

    def jose(message: StepMessage) -> Disposition | None:
        try:
            header = jwe.header_of(message.body)
            body = message.body
            message.body = opened(str(header.get("kid", "")), lambda cipher: jwe.unseal(body, cipher))
        except jwe.JweError as error:
            raise StepRefusalError(DECRYPTION_FAILED, str(error)) from None
        message.set_property("content_type", header.get("cty"))
        return None

    def plain(message: StepMessage) -> Disposition | None:
        body = message.body
        key_id, content_type = message.user(_KEY_ID), message.user(_CONTENT_TYPE)
        if len(body) < jwe.NONCE_BYTES + jwe.TAG_BYTES:
            raise StepRefusalError(DECRYPTION_FAILED, "the body is too short for nonce and tag")
        nonce, sealed = body[: jwe.NONCE_BYTES], body[jwe.NONCE_BYTES :]
        try:
            message.body = opened(
                "" if key_id is MISSING else str(key_id), lambda cipher: cipher.decrypt(nonce, sealed, None)
            )
        except InvalidTag:
            raise StepRefusalError(DECRYPTION_FAILED, "the body is sealed with another key, or was changed") from None
        message.set_property("content_type", None if content_type is MISSING else str(content_type))
        for name in (_ENCRYPTION, _KEY_ID, _CONTENT_TYPE):
            message.set_application_property(name, REMOVED)
        return None

    return jose if settings["format"] == "jwe" else plain
