"""The messages in a listener's spool that no route has settled.

What it is: a read-only query of the folder, by any process. What it is not: its reading (`outgoing`).
"""

from __future__ import annotations

from pathlib import Path

from isthmus.connectors.listen.taken import Taken
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader

__all__ = ["listener_backlog"]


def listener_backlog(path: Path) -> int:
    """The number of unsettled messages that were answered 200; 0 where there is no spool.

    Args:
        path: the spool's folder.
    """
    reader, taken = SpoolReader(path), Taken(path / "taken")
    if not SpoolFolder(path).numbers():
        return 0
    taken.load(reader.identity)
    taken.add_range(0, reader.first().number)
    return max(0, reader.last().number - taken.settled)
