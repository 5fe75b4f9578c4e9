"""What the state of the query between two spools is of, and what is in it alone.

What it is: a file in the folder of the outgoing spool that tells whose state the query's checkpoint holds, and the count of messages in
windows that have not closed: their segments may be deleted, and nothing but the checkpoint has them. What it is not: the query (`query`), or
Spark's state.

Invariants:
    I1. Messages in windows that are open are counted from where the query began; of a query that began before that was noted none are known.
    I2. What a route without the query takes from its spool, since the file has no such step any more, is no message of the query: neither
        counted, nor read by it where the step is put back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.connectors.spool.folder import SpoolError
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.refused import count_refused
from isthmus.replication.shuffle.note import BatchNote, last_note
from isthmus.whole_file import write_file

__all__ = ["beginning_of", "in_windows", "kind_of", "leave", "past", "read_state", "write_state"]

_FILE = "state"


def read_state(outgoing: Path) -> dict[str, Any]:
    """What the file tells; empty where there is none, or nobody can read it."""
    with suppress(FileNotFoundError, ValueError):
        told = json.loads((outgoing / _FILE).read_bytes())
        if isinstance(told, dict):
            return told
    return {}


def write_state(outgoing: Path, told: Mapping[str, Any]) -> None:
    """Tell it; it is on disk then."""
    write_file(outgoing / _FILE, json.dumps(told, sort_keys=True).encode())


def kind_of(told: Mapping[str, Any]) -> str:
    """The step whose state it is."""
    return "aggregate" if "fields" in told else "deduplicate"


def leave(incoming: Path, outgoing: Path) -> None:
    """A route without the query is going to read the incoming spool (I2)."""
    told = read_state(outgoing)
    if told and "left" not in told:
        write_state(outgoing, told | {"left": _taken(incoming)})


def past(incoming: Path, outgoing: Path) -> str:
    """The incoming spool's identity and the first record that a route without the query has left in it; empty: none has read it (I2)."""
    told = read_state(outgoing)
    return f"{SpoolReader(incoming).identity} {_taken(incoming)}" if "left" in told else str(told.get("past", ""))


def beginning_of(incoming: Path, outgoing: Path) -> dict[str, Any]:
    """Where a query begins whose checkpoint holds nothing yet: what was taken from one spool, and what of that the other's notes tell of."""
    return {
        "spool": SpoolReader(incoming).identity,
        "taken": _taken(incoming),
        "noted": _noted(incoming, last_note(outgoing)),
    }


def in_windows(incoming: Path, outgoing: Path, note: BatchNote | None = None) -> int:
    """How many messages are in windows of `aggregate` that have not closed.

    Args:
        incoming: folder of the spool that the query reads.
        outgoing: folder of the one that it writes.
        note: its last note there, where that was read already.
    """
    told = read_state(outgoing)
    began = told.get("began")
    if not isinstance(began, dict) or began.get("spool") != SpoolReader(incoming).identity:
        return 0
    with suppress(SpoolError, KeyError, TypeError, ValueError):
        went = _noted(incoming, last_note(outgoing) if note is None else note)
        taken = int(told.get("left", _taken(incoming)))
        came, went = taken - int(began["taken"]), went - int(began["noted"])
        return max(0, came - went)
    return 0


def _taken(incoming: Path) -> int:
    reader = SpoolReader(incoming)
    taken = reader.taken()
    return reader.first().number if taken is None else taken


def _noted(incoming: Path, note: BatchNote) -> int:
    """What went into a result, or was set aside."""
    return note.taken + count_refused(incoming)
