"""The note of `plan` and `apply` about a run that is alive while its file was changed."""

from __future__ import annotations

from dataclasses import replace

from isthmus.topology import Plan
from isthmus.topology.file.name import state_folder

__all__ = ["with_run"]


def with_run(made: Plan, file: str) -> Plan:
    """The plan, with a note if it has changes and a run of the file is alive.

    Args:
        made: the plan.
        file: the federation file.
    """
    if not made.changes:
        return made
    from isthmus.supervisor.status import read_status

    document = read_status(state_folder(file))
    if document is None or not document["alive"]:
        return made
    note = (
        f"a run of this file is alive, process {document['process']}: it still uses the file as it has read it, and its copies have the mark that it "
        "knows; end it before apply, and restart it"
    )
    return replace(made, notes=(*made.notes, note))
