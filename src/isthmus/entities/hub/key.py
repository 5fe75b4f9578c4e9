"""The keys of event hubs in the store, besides those of `isthmus.entities.storage.key`.

What it is: four tables. A hub's row is under its lower-case name; every partition has a number that is never used
again, under which its state and its blocks are. A block's key ends with the sequence number of its *last* event, so
that the first key at or after a sequence number is that of the block which contains it.
"""

from __future__ import annotations

from isthmus.entities.storage.key import message_key, message_span, numbered_span

__all__ = [
    "COUNTER",
    "HUB",
    "blocks_before",
    "blocks_from",
    "block_key",
    "every_block",
    "hub_key",
    "hub_span",
    "state_key",
]

COUNTER = b"\x00hub-counter"
HUB, STATE, BLOCK = 0x60, 0x61, 0x62
_LAST = (1 << 64) - 2


def hub_key(name: str) -> bytes:
    """The key of a hub's row."""
    return bytes((HUB,)) + name.lower().encode()


def hub_span() -> tuple[bytes, bytes]:
    """The half-open range of all hubs' rows."""
    return bytes((HUB,)), bytes((HUB + 1,))


def state_key(number: int) -> bytes:
    """The key of a partition's cursors."""
    return numbered_span(STATE, number)[0]


def block_key(number: int, last: int) -> bytes:
    """The key of the block whose last event has that sequence number."""
    return message_key(BLOCK, number, last)


def blocks_from(number: int, sequence: int) -> tuple[bytes, bytes]:
    """The half-open range of the blocks from the one that contains `sequence` on."""
    return message_span(BLOCK, number, sequence, _LAST)


def blocks_before(number: int, sequence: int) -> tuple[bytes, bytes]:
    """The half-open range of the blocks that end before `sequence`."""
    return message_key(BLOCK, number, 0), message_key(BLOCK, number, sequence)


def every_block(number: int) -> tuple[bytes, bytes]:
    """The half-open range of all blocks of a partition."""
    return numbered_span(BLOCK, number)
