"""The messages in a listener's spool that no route has settled.

What it is: a read-only query of the folder, by any process. What it is not: its reading (`outgoing`).
"""

from __future__ import annotations

from pathlib import Path

from isthmus.connectors.listen.settled_records import SettledRecords
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader

__all__ = ["listener_backlog"]


def listener_backlog(path: Path) -> int:
    """The number of unsettled messages that were answered 200; 0 where there is no spool.

    Args:
        path: the spool's folder.
    """
    reader, settled_records = SpoolReader(path), SettledRecords(path / "taken")
    if not SpoolFolder(path).numbers():
        return 0
    settled_records.load(reader.identity)
    settled_records.add_range(0, reader.first().number)
    return max(0, reader.last().number - settled_records.settled)
