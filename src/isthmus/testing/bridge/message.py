"""Messages of the tests: AMQP 1.0 messages with a key in their property message-id.

What it is: making them and reading their key (OASIS AMQP 1.0 part 3, 3.2.4). A key is `name/number`, so that order is
checked by number.

Invariants:
    I1. `key_of(message(key)) == key`; bytes that are not a message have no key.
"""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp

__all__ = ["UNREADABLE", "key_of", "message", "number_of"]

UNREADABLE = b"\xff\xfe this is no AMQP message"


def message(key: str, body: bytes = b"", created_ms: int = 0, ttl_ms: int = 0) -> bytes:
    """An encoded message; `created_ms` and `ttl_ms` are left out where 0."""
    properties: dict[str, object] = {"message_id": key}
    if created_ms:
        properties["creation_time"] = Timestamp(created_ms)
    header = section.Header(ttl_ms=ttl_ms) if ttl_ms else None
    return section.encode_message(body, header=header, properties=properties)


def key_of(payload: bytes) -> str:
    """The key of an encoded message; empty where it has none or cannot be read."""
    try:
        sections = section.locate(payload)
        at = section.message_id_at(payload, sections.properties)
        return (section.message_id_text(payload, at) or b"").decode()
    except Exception:  # noqa: BLE001 (whatever is wrong with it, it has no key)
        return ""


def number_of(key: str) -> int:
    """The number of a key; -1 where it has none."""
    _, _, number = key.rpartition("/")
    return int(number) if number.isdigit() else -1
