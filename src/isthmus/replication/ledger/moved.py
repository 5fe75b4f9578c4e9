"""What a ledger tells of messages that a target has acknowledged, for verification.

What it is: the numbers of messages that a route has moved, by their origin, from the table and from the files that are not part of it yet. What
it is not: a proof that they are still there: where nobody consumes, verification looks for the message itself.

Invariants:
    I1. Only outcomes `moved` count, or, where they are asked for, `divert`: an entity has acknowledged the message.
    I2. A number is told with the time at which it was moved last: an entity that was made again gives its numbers again, and what was moved
        before a message entered was another one.
    I3. The time at which a message was enqueued is told only where that was at its origin: where it came from there without another hop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.connectors.ledger.file import OPEN
from isthmus.errors import IsthmusError
from isthmus.replication.ledger.table import rows_of

__all__ = ["DIVERTED", "MOVED", "LedgerUnreadableError", "enqueued", "moved"]

_COLUMNS = [
    "route",
    "outcome",
    "moved_time",
    "source",
    "sequence_number",
    "enqueued_time",
    "origin",
    "origin_sequence_number",
]
MOVED, DIVERTED = "moved", "divert"


class LedgerUnreadableError(IsthmusError):
    """What a route has moved cannot be read."""

    code = "ledger-unreadable"


def moved(ledger: Path, route: str, origins: Collection[str], outcome: str = MOVED) -> dict[int, int]:
    """Messages that a route has moved: sequence numbers at their origin, and when each was moved last, as wall time in ms.

    Args:
        ledger: its folder.
        route: the route's name.
        origins: alias and entity of the origin, as provenance has it.
        outcome: which are meant: `moved`, or `divert` for those that its steps have diverted.

    Raises:
        LedgerUnreadableError: a file of it cannot be read.
    """
    found: dict[int, int] = {}
    for number, row in _moved(ledger, route, origins, (outcome,)):
        found[number] = max(round(row["moved_time"].timestamp() * 1000), found.get(number, 0))
    return found


def enqueued(ledger: Path, route: str, origins: Collection[str]) -> dict[int, int]:
    """Messages that a route has moved or diverted: sequence numbers at their origin, and when each was enqueued there, as wall time in ms,
    where that is told.

    Args:
        ledger: its folder.
        route: the route's name.
        origins: alias and entity of the origin, as provenance has it.

    Raises:
        LedgerUnreadableError: a file of it cannot be read.
    """
    found: dict[int, int] = {}
    for number, row in _moved(ledger, route, origins, (MOVED, DIVERTED)):
        origin, source = row.get("origin"), row.get("source")
        if origin is None or (source is not None and origin.lower() == source.lower()):
            at_ms = _ms(row.get("enqueued_time"))
            if at_ms:
                found[number] = max(at_ms, found.get(number, 0))
    return found


def _ms(text: str | None) -> int:
    """A time as a ledger has it; 0 where it is none."""
    try:
        return max(0, round(datetime.fromisoformat(text or "").timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def _moved(
    ledger: Path, route: str, origins: Collection[str], outcomes: Collection[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What a route has moved of these origins: the number there, and the row."""
    folded = {each.lower() for each in origins}
    for row in _rows(ledger):
        if row["route"] != route or row["outcome"] not in outcomes:
            continue
        origin, number = row.get("origin"), row.get("origin_sequence_number")
        if origin is None:  # it carries no provenance: its source is where it entered
            origin, number = row.get("source"), row.get("sequence_number")
        if number is not None and (origin is None or origin.lower() in folded):
            yield int(number), row


def _rows(ledger: Path) -> Iterator[dict[str, Any]]:
    # What is open becomes part of the table: it is read first.
    for path in sorted((ledger / OPEN).glob("*.log")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LedgerUnreadableError(f"{path} cannot be read: {error.strerror or error}") from None
        yield from rows_of(data, bodies=False)
    for path in sorted(ledger.glob("date=*/*.parquet")):
        try:
            rows = pq.ParquetFile(path).read(columns=_COLUMNS).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise LedgerUnreadableError(f"{path} cannot be read: {error}") from None
        yield from rows
