"""Header values of a record as JSON, and back.

What it is: the form of bytes in the JSON of this package: text where they are UTF-8, else an object with base64.
What it is not: the mapping of messages to records (`isthmus.connectors.kafka.mapping.mapping`).

Invariants:
    I1. `read(write(value)) == value`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

__all__ = ["BASE64", "read", "write"]

BASE64 = "base64"


def write(value: bytes | None) -> Any:
    """A value as JSON."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode()}


def read(value: Any) -> bytes | None:
    """A value from JSON.

    Raises:
        ValueError: it is not in that form.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and isinstance(value.get(BASE64), str):
        try:
            return base64.b64decode(value[BASE64], validate=True)
        except binascii.Error as error:
            raise ValueError("no base64") from error
    raise ValueError("neither text nor base64")
