"""Messages that a route reading a spool has set aside: a spool has no dead-letter queue.

What it is: two files for each in the spool's folder `refused`: the message as the route had it, and why. What it is not: resending
them. docs/explanation/spool.md.

    NUMBER.amqp     the encoded message (OASIS AMQP 1.0 part 3)
    NUMBER.json     reason, description, when

Invariants:
    I1. Both are on disk when `set_aside` returns; the note last, so that a message with a note is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from isthmus.bridge.delivery_event import Disposition
from isthmus.whole_file import write_file

__all__ = ["count_refused", "refused_messages", "set_aside"]

_FOLDER = "refused"
_DIGITS = 20


def set_aside(spool: Path, number: int, message: bytes, disposition: Disposition, wall_seconds: float) -> None:
    """Stores a message, and why it was refused.

    Raises:
        OSError: the disk refuses.
    """
    folder = spool / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    when = datetime.fromtimestamp(wall_seconds, UTC).isoformat(timespec="seconds")
    note = {"reason": disposition.reason, "description": disposition.description, "time": when}
    write_file(folder / f"{number:0{_DIGITS}d}.amqp", message)
    write_file(folder / f"{number:0{_DIGITS}d}.json", json.dumps(note, ensure_ascii=False).encode(errors="replace"))


def refused_messages(spool: Path) -> Iterator[bytes]:
    """The stored messages, in the order of the spool."""
    for note in sorted((spool / _FOLDER).glob("*.json")):
        yield note.with_suffix(".amqp").read_bytes()


def count_refused(spool: Path) -> int:
    """The number of stored messages."""
    try:
        return sum(name.endswith(".json") for name in os.listdir(spool / _FOLDER))
    except FileNotFoundError:
        return 0
