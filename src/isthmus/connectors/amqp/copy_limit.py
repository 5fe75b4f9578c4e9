"""How many copies of messages that are set aside may wait to be stored.

What it is: the limit, for every kind of source that sends such copies. The owner of a message has settled it, and grants credit for another one:
without a limit, a source whose dead letters are not accepted would read its whole backlog. What it is not: a time-out.
"""

from __future__ import annotations

__all__ = ["MOST_BYTES", "MOST_COPIES", "is_full"]

MOST_COPIES = 1000
MOST_BYTES = 4 << 20


def is_full(copies: int, nbytes: int) -> bool:
    """Whether the source must deliver nothing more; copies of messages that are with its owner may still follow."""
    return copies >= MOST_COPIES or nbytes >= MOST_BYTES
