"""The records of a ledger about acknowledged messages, for verification.

What it is: the numbers of messages that a route has moved, by their origin, from the table and from files that are not part of it yet. What
it is not: a proof that they still exist: if no application consumes, verification searches for the message itself.

Invariants:
    I1. Only the outcome `moved` counts, or, on request, `divert`: an entity has acknowledged the message.
    I2. A number is returned with the time at which it was moved last: an entity that was created again assigns its numbers again, and a message
        moved before the present one entered was another message.
    I3. The time at which a message was enqueued is returned only if it is the time at its origin: if it came from there without another hop.
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
    """The moved messages of a route cannot be read."""

    code = "ledger-unreadable"


def moved(ledger: Path, route: str, origins: Collection[str], outcome: str = MOVED) -> dict[int, int]:
    """Moved messages of a route: sequence numbers at their origin, and when each was moved last, as wall time in ms.

    Args:
        ledger: its folder.
        route: the route's name.
        origins: alias and entity of the origin, as in provenance.
        outcome: the outcome: `moved`, or `divert` for those that its steps have diverted.

    Raises:
        LedgerUnreadableError: a file of it cannot be read.
    """
    found: dict[int, int] = {}
    for number, row in _moved(ledger, route, origins, (outcome,)):
        found[number] = max(round(row["moved_time"].timestamp() * 1000), found.get(number, 0))
    return found


def enqueued(ledger: Path, route: str, origins: Collection[str]) -> dict[int, int]:
    """Moved or diverted messages of a route: sequence numbers at their origin, and when each was enqueued there, as wall time in ms,
    if the ledger has it.

    Args:
        ledger: its folder.
        route: the route's name.
        origins: alias and entity of the origin, as in provenance.

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
    """A time of a ledger; 0 if it is invalid."""
    try:
        return max(0, round(datetime.fromisoformat(text or "").timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def _moved(
    ledger: Path, route: str, origins: Collection[str], outcomes: Collection[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a route for these origins: the number there, and the row."""
    folded = {each.lower() for each in origins}
    for row in _rows(ledger):
        if row["route"] != route or row["outcome"] not in outcomes:
            continue
        origin, number = row.get("origin"), row.get("origin_sequence_number")
        if origin is None:  # without provenance, its source is its entry point
            origin, number = row.get("source"), row.get("sequence_number")
        if number is not None and (origin is None or origin.lower() in folded):
            yield int(number), row


def _rows(ledger: Path) -> Iterator[dict[str, Any]]:
    # Open files become part of the table: they are read first.
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
