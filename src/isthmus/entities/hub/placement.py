"""The choice of the partition for an event.

What it is: the hash of partition keys that the service and the buffered producers of its SDKs use, and the rotation for
events without a key. Spec: Bob Jenkins' lookup3 (hashlittle2), its two halves folded to a signed 16-bit number.

Invariants:
    I1. A key always goes to the same partition, as long as the number of partitions stays the same.
    I2. An SDK that places events by itself picks the same partition for that key.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["Round", "place"]

_MASK = 0xFFFFFFFF
_SEED = 0xDEADBEEF


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> (32 - count)) & _MASK


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


@lru_cache(65_536)
def _hash(key: str) -> int:
    """A partition key's hash, signed 16 bits. Keys are short: `event` refuses others."""
    data = key.encode()
    a = b = c = (_SEED + len(data)) & _MASK
    at = 0
    while True:
        a = (a + _word(data, at)) & _MASK
        b = (b + _word(data, at + 4)) & _MASK
        c = (c + _word(data, at + 8)) & _MASK
        if len(data) - at <= 12:
            break
        # Each step is the same with the three words rotated; after six of them they are in their first order.
        for count in (4, 6, 8, 16, 19, 4):
            a, b, c = b, (c + b) & _MASK, (a - c & _MASK) ^ _rotated(c, count)
        at += 12
    for count in (14, 11, 25, 16, 4, 14, 24):
        c, b, a = a, ((c ^ b) - _rotated(b, count)) & _MASK, b
    # After seven steps the words are rotated by one: `b` is the last word written, `a` the one before it.
    folded = (b ^ a) & 0xFFFF
    return folded - 0x10000 if folded & 0x8000 else folded


def place(key: str, count: int) -> int:
    """The partition, of `count`, that a key goes to."""
    return abs(_hash(key) % count) if key else 0


class Round:
    """Partitions in rotation, for events without a key."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> int:
        """The next of `count` partitions."""
        index = self._next % count
        self._next = index + 1
        return index
