"""The steps `encrypt` and `decrypt`: bodies that can be read only with the key."""

from __future__ import annotations

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec
from isthmus.topology.step.base import StepKind, on_failure

__all__ = ["ALGORITHMS", "DecryptStep", "EncryptStep"]

ALGORITHMS = ("A256GCM", "A192GCM", "A128GCM")
"""Content encryption algorithms of RFC 7518, section 5.3."""

_FORMAT = Setting(
    name="format",
    kind=Kind.CHOICE,
    choices=("jwe", "aes-gcm"),
    default="jwe",
    description="The format of an encrypted body. `jwe`: JWE compact serialization (RFC 7516) with `alg` `dir` and the key's id in "
    "`kid`; `aes-gcm`: 12 bytes of nonce, the ciphertext and 16 bytes of tag, with algorithm and key id in the properties "
    "`isthmus-encryption` and `isthmus-key-id`.",
    example="aes-gcm",
)
_KEY = (
    "A reference (`env:`, `file:`, `keyvault:`) to the key as base64url, base64 or hexadecimal text or as a JSON Web Key. It is read "
    "where it is used, and again within a minute after a file, within five minutes after a vault has changed."
)


class EncryptStep(StepKind):
    """`encrypt`."""

    spec = Spec(
        "encrypt",
        "Encrypts bodies. Properties stay readable: brokers route by them. The original ContentType is encrypted with the body, and "
        "that of the copy is `application/jose` or `application/octet-stream`.",
        (
            Setting(
                name="key", kind=Kind.REFERENCE, required=True, description=_KEY, example="file:/etc/isthmus/order.key"
            ),
            Setting(
                name="key_id",
                kind=Kind.TEXT,
                description="Name of the key, written with the ciphertext so that `decrypt` finds the key after a rotation. A JSON Web "
                "Key has its own (`kid`).",
                example="order-2026",
            ),
            Setting(
                name="algorithm",
                kind=Kind.CHOICE,
                choices=ALGORITHMS,
                default=ALGORITHMS[0],
                description="The cipher; its number is the length of the key in bits. Encrypt no more than 2³² messages with one key.",
                example=ALGORITHMS[0],
            ),
            _FORMAT,
            *on_failure("dead-letter", "a message that cannot be encrypted (reason `StepFailed`)"),
        ),
    )
    references = ("key",)


class DecryptStep(StepKind):
    """`decrypt`."""

    spec = Spec(
        "decrypt",
        "Decrypts bodies that `encrypt`, or another program that writes the same format, has encrypted. It supports every algorithm that "
        "`encrypt` supports.",
        (
            Setting(name="key", kind=Kind.REFERENCE, description=_KEY, example="file:/etc/isthmus/order.key"),
            Setting(
                name="keys",
                kind=Kind.PAIRS,
                description="Key id → reference, for a rotation: the message contains the id of its key. Exactly one of `key` and `keys` "
                "is written.",
                example="{order-2025: file:/etc/isthmus/2025.key, order-2026: file:/etc/isthmus/2026.key}",
            ),
            _FORMAT,
            *on_failure("dead-letter", "a message that cannot be decrypted (reason `DecryptionFailed`)"),
        ),
    )
    references = ("key", "keys")

    def check(self, values: Values, document: Document) -> None:
        if values.written("key") == values.written("keys"):
            document.fault(values.at("keys"), "decrypt needs exactly one of key and keys", "write key: file:/path")
        reference = Setting(name="keys", kind=Kind.REFERENCE, description="", example="{k1: file:/path}")
        for each in (values["keys"] or {}).values():
            try:
                reference.parse(each)
            except SettingError as wrong:
                document.fault(values.at("keys"), wrong.message, wrong.hint)
