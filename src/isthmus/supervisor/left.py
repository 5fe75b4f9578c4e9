"""What earlier runs have left that no run of the file goes on with.

What it is: the warnings of a run that begins. What it is not: what is left at namespaces (`isthmus.topology.planning.orphan`).
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
    """Log each spool that no route of the file sends on, and each state folder of a file that may have been renamed.

    Raises:
        InvalidArgumentError: what earlier runs noted cannot be read.
    """
    for path, messages in stranded(routes(federation), state_folder, federation.namespaces):
        log.warning(
            "spool %s holds %d messages that were taken from their source and that no route of the file sends on: put the setting back that "
            "named it, and let it drain",
            path,
            messages,
        )
    for former in former_folders(state_folder, federation.file):
        log.warning(
            "%s is the state folder of a file that is there no more, and no run looks into it: if %s is that file by another name, end the run, "
            "and rename the folder to %s; else remove it, unless a spool of it holds messages",
            former,
            federation.file,
            state_folder,
        )
