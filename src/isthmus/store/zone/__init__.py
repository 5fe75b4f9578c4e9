"""A store in three copies, one in each zone: folders that may be on three disks or mounts.

What it is: `ZonedJournal`, which is `isthmus.entities.Journal` over three stores, and `ZonedBlobs`, which is
`isthmus.entities.BlobFiles` over three folders. What it is not: a replication between machines: one process writes all
three. See docs/explanation/zones.md.
"""

from __future__ import annotations

from isthmus.store.zone.blob import ZonedBlobs
from isthmus.store.zone.journal import ZonedJournal
from isthmus.store.zone.note import NoteError, read_note
from isthmus.store.zone.status import COPIES, ZoneStatus

__all__ = ["COPIES", "NoteError", "ZoneStatus", "ZonedBlobs", "ZonedJournal", "read_note"]
