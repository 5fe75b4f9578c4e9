"""What `plan` and `apply` say of a run that is alive while its file was changed."""

from __future__ import annotations

from dataclasses import replace

from isthmus.topology import Plan
from isthmus.topology.file.name import state_folder

__all__ = ["with_run"]


def with_run(made: Plan, file: str) -> Plan:
    """The plan, with a note where it has changes and a run of the file is alive.

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
        f"a run of this file is alive, process {document['process']}: it goes on with what it has read, and its copies bear the mark that it "
        "knows; end it before apply, and start it again"
    )
    return replace(made, notes=(*made.notes, note))
