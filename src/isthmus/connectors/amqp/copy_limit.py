"""How many copies of messages that are set aside may wait to be stored, and how long.

What it is: the limit, for every kind of source that sends such copies. The owner of a message has settled it, and grants credit for another one:
without a limit, a source whose dead letters are not accepted would read its whole backlog. And how long a source waits for one of them before it
is opened again, which counts as a delivery attempt at some brokers: these drop a message after a number of them.
"""

from __future__ import annotations

__all__ = ["LONGEST_SECONDS", "MOST_BYTES", "MOST_COPIES", "is_full", "longer"]

MOST_COPIES = 1000
MOST_BYTES = 4 << 20
# RabbitMQ gives up a consumer that acknowledges nothing for so long.
LONGEST_SECONDS = 1800.0


def is_full(copies: int, nbytes: int) -> bool:
    """Whether the source must deliver nothing more; copies of messages that are with its owner may still follow."""
    return copies >= MOST_COPIES or nbytes >= MOST_BYTES


def longer(seconds: float) -> float:
    """How long to wait the next time, after none was stored for so long."""
    return min(2.0 * seconds, LONGEST_SECONDS)
