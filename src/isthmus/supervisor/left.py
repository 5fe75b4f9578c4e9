"""Remains of earlier runs that no run of the file uses any more.

What it is: the warnings at the start of a run. What it is not: remains at namespaces (`isthmus.topology.planning.orphan`).
"""

from __future__ import annotations

import logging
from pathlib import Path

from isthmus.replication.shuffle.start import stranded
from isthmus.supervisor.claim.folder_lock import former_folders
from isthmus.topology.model import Federation
from isthmus.topology.route import routes

__all__ = ["warn_of_left"]

log = logging.getLogger(__name__)


def warn_of_left(federation: Federation, state_folder: Path) -> None:
    """Log each spool that no route of the file drains, and each state folder of a file that may have been renamed.

    Raises:
        InvalidArgumentError: the notes of earlier runs cannot be read.
    """
    for path, messages in stranded(routes(federation), state_folder, federation.namespaces):
        log.warning(
            "spool %s has %d messages that were taken from their source and that no route of the file sends on: restore the setting that "
            "named it, and let it drain",
            path,
            messages,
        )
    for former in former_folders(state_folder, federation.file):
        log.warning(
            "%s is the state folder of a file that does not exist any more, and no run uses it: if %s is that file with a new name, end the run, "
            "and rename the folder to %s; else remove it, unless a spool in it has messages",
            former,
            federation.file,
            state_folder,
        )
