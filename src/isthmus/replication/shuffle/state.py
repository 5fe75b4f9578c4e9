"""The owner of a shuffle query's state, and the count of messages that are only in that state.

What it is: a file in the folder of the outgoing spool that records whose state the query's checkpoint contains, and the count of messages in
open windows: their segments may be deleted, and only the checkpoint has them. What it is not: the query (`query`), or
Spark's state.

Invariants:
    I1. Messages in open windows are counted from the start of the query; of a query that started before that was recorded none are known.
    I2. A message that a route without the query takes from its spool, because the file no longer has such a step, is no message of the
        query: it is not counted, and the query does not read it if the step is added again.
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
    """The content of the file; empty if it is missing or unreadable."""
    with suppress(FileNotFoundError, ValueError):
        state = json.loads((outgoing / _FILE).read_bytes())
        if isinstance(state, dict):
            return state
    return {}


def write_state(outgoing: Path, state: Mapping[str, Any]) -> None:
    """Write the file; returns once it is on disk."""
    write_file(outgoing / _FILE, json.dumps(state, sort_keys=True).encode())


def kind_of(state: Mapping[str, Any]) -> str:
    """The step that the state belongs to."""
    return "aggregate" if "fields" in state else "deduplicate"


def leave(incoming: Path, outgoing: Path) -> None:
    """A route without the query is going to read the incoming spool (I2)."""
    reported = read_state(outgoing)
    if reported and "left" not in reported:
        write_state(outgoing, reported | {"left": _taken(incoming)})


def past(incoming: Path, outgoing: Path) -> str:
    """The incoming spool's identity and the first record that a route without the query has left in it; empty: none has read it (I2)."""
    reported = read_state(outgoing)
    return (
        f"{SpoolReader(incoming).identity} {_taken(incoming)}" if "left" in reported else str(reported.get("past", ""))
    )


def beginning_of(incoming: Path, outgoing: Path) -> dict[str, Any]:
    """The start of a query with an empty checkpoint: the messages taken from one spool, and those of them in the other's notes."""
    return {
        "spool": SpoolReader(incoming).identity,
        "taken": _taken(incoming),
        "noted": _noted(incoming, last_note(outgoing)),
    }


def in_windows(incoming: Path, outgoing: Path, note: BatchNote | None = None) -> int:
    """The number of messages in open windows of `aggregate`.

    Args:
        incoming: folder of the spool that the query reads.
        outgoing: folder of the spool that it writes.
        note: its last note there, if it was read already.
    """
    reported = read_state(outgoing)
    began = reported.get("began")
    if not isinstance(began, dict) or began.get("spool") != SpoolReader(incoming).identity:
        return 0
    with suppress(SpoolError, KeyError, TypeError, ValueError):
        went = _noted(incoming, last_note(outgoing) if note is None else note)
        taken = int(reported.get("left", _taken(incoming)))
        came, went = taken - int(began["taken"]), went - int(began["noted"])
        return max(0, came - went)
    return 0


def _taken(incoming: Path) -> int:
    reader = SpoolReader(incoming)
    taken = reader.taken()
    return reader.first().number if taken is None else taken


def _noted(incoming: Path, note: BatchNote) -> int:
    """The number of messages that are in a result, or were set aside."""
    return note.taken + count_refused(incoming)
