"""The format of a store, and the upgrade of older formats.

What it is: the row that names the format, the store's identity, and one step for each older format. What
it is not: the rows themselves (`key`, docs/explanation/store.md). A change of anything in the store, or an addition
that an older release would overlook, raises `FORMAT_VERSION` and adds a step.

Invariants:
    I1. A store of a later format is refused before anything of it is read or written.
    I2. A step and the row that names its format are one batch, synced: a kill leaves a store of one format or of
        the next, never one in between. A step too large for one batch must be repeatable, and write the row last.
    I3. An upgrade loses nothing: receivers get the same messages as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from isthmus.entities.storage.journal import Batch, Journal
from isthmus.entities.storage.key import FORMAT, IDENTITY
from isthmus.errors import StoreError

__all__ = ["FORMAT_VERSION", "Identity", "ensure_format", "read_identity"]

FORMAT_VERSION = 6


class Identity(NamedTuple):
    """The identity of a store; a back-up of it has the same one.

    Attributes:
        store_id: 32 hexadecimal digits; empty for one of format 1.
        created_at_ms: wall time; of a store of format 1, the time of its upgrade.
    """

    store_id: str
    created_at_ms: int


def read_identity(journal: Journal) -> Identity:
    """The identity of the store."""
    row = journal.get(IDENTITY)
    if row is None:
        return Identity("", 0)
    values = json.loads(row)
    return Identity(values["store_id"], values["created_at_ms"])


def ensure_format(journal: Journal, now_ms: int, random_bytes: Callable[[int], bytes]) -> int:
    """Upgrade a store to the present format, or initialise an empty one.

    Args:
        journal: the store, opened and not read yet.
        now_ms: wall time.
        random_bytes: source of the store's identity.

    Returns:
        The format that the store had; 0 for an empty one.

    Raises:
        StoreError: its format is later than this release's, or invalid; or the disk refused.
    """
    found = _version(journal.get(FORMAT))
    if found > FORMAT_VERSION:
        raise StoreError(
            f"The store has format {found}, this release reads formats 1 to {FORMAT_VERSION}; "
            "use the release that wrote it, or a later one."
        )
    if not found:
        batch = journal.batch()
        _give_identity(journal, batch, now_ms, random_bytes)
        _finish(journal, batch, FORMAT_VERSION)
    for version in range(found or FORMAT_VERSION, FORMAT_VERSION):
        batch = journal.batch()
        _STEPS[version](journal, batch, now_ms, random_bytes)
        _finish(journal, batch, version + 1)
    return found


def _finish(journal: Journal, batch: Batch, version: int) -> None:
    batch.put(FORMAT, str(version).encode())
    journal.write(batch)
    journal.sync()


def _version(row: bytes | None) -> int:
    if row is None:
        return 0
    if not row.isdigit() or row == b"0":
        raise StoreError(
            f"The store's format is {row[:32]!r}, which is not a format; the folder does not contain a namespace's store."
        )
    return int(row)


def _give_identity(journal: Journal, batch: Batch, now_ms: int, random_bytes: Callable[[int], bytes]) -> None:
    """Format 1 had no identity. Its rows are format 2's otherwise."""
    batch.put(IDENTITY, json.dumps({"store_id": random_bytes(16).hex(), "created_at_ms": now_ms}).encode())


def _keep_rows(journal: Journal, batch: Batch, now_ms: int, random_bytes: Callable[[int], bytes]) -> None:
    """Formats with additions only: older rows have none of them.

    Format 3 counts hops in a forwarded message's record and numbers transfer dead-letter queues; format 4 has bodies of
    large messages outside of their records, and rows that refer to them, and names the fragments of partitioned
    entities, whose messages are in stores of their own, and lines of messages on their way from one store to another. Format 5 keeps marks of the sources of copies, without which an
    earlier release would add keys, and rows that contain the keys of many. Format 6 records the lengths of the generations of detection,
    and keeps those of a former window.
    """


_STEPS: dict[int, Callable[[Journal, Batch, int, Callable[[int], bytes]], None]] = {
    1: _give_identity,
    2: _keep_rows,
    3: _keep_rows,
    4: _keep_rows,
    5: _keep_rows,
}
