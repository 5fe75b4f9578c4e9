"""What `apply --prune` and `remove` share: orphans listed with what waits in them, and deleted with consent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from isthmus.connectors.administration import Administrations, Applied
from isthmus.errors import IsthmusError
from isthmus.supervisor.fitting_table import FittingTable
from isthmus.topology import Change, Federation, NamespaceState
from isthmus.topology.planning.orphan import Orphan, claims_at, removal

__all__ = ["Removal", "claims_of", "print_others", "remove_orphans"]


Claims = Callable[[Sequence[tuple[str, str]]], AbstractContextManager[None]]


@dataclass
class Removal:
    """What became of orphans.

    Attributes:
        rows: each orphan as plain values for `--json`: namespace, kind, path, task, member, messages (None: not known).
        applied: the changes that were made; None without consent.
        error: why nothing was deleted though there was consent.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    applied: Applied | None = None
    error: IsthmusError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for `--json`."""
        told = {"orphans": self.rows, "removed": self.applied.to_dict() if self.applied else None}
        return told | ({"error": self.error.to_dict()} if self.error is not None else {})

    @property
    def failed(self) -> bool:
        """Whether a deletion was refused."""
        return self.error is not None or (self.applied is not None and self.applied.failed is not None)


def remove_orphans(
    administrations: Administrations,
    held: Mapping[str, NamespaceState],
    orphans: Sequence[Orphan],
    *,
    consent: bool,
    console: Console | None,
    claims: Claims,
) -> Removal:
    """Name the orphans and the messages that wait in them, and delete them where that is consented to.

    Args:
        administrations: of the namespaces.
        held: what they hold.
        orphans: to delete.
        consent: whether to delete.
        console: for people; None for `--json`.
        claims: holds claims of tasks, by task and alias, while it lasts; an error where a run has one.
    """
    found = Removal([_row(administrations, each) for each in orphans])
    if console and orphans:
        console.print(_table(found.rows))
    if not consent or not orphans:
        return found

    def say(change: Change) -> None:
        if console:
            console.print(Text(f"{change.alias}: {change.action} {change.kind} {change.path}"))

    claimed = claims_at(held, {each.task for each in orphans})
    try:
        with claims(claimed) if claimed else nullcontext():
            found.applied = administrations.make(removal(held, orphans), say)
    except IsthmusError as error:
        found.error = error
        if console:
            console.print(Text(str(error), style="red"))
        return found
    failed = found.applied.failed
    if console and failed is not None:
        told = (
            f"{failed.alias}: {failed.action} {failed.kind} {failed.path} failed: {found.applied.error}; run it again"
        )
        console.print(Text(told, style="red"))
    return found


def claims_of(federation: Federation) -> Claims:
    """Holds claims at a federation's namespaces."""

    def hold(wanted: Sequence[tuple[str, str]]) -> AbstractContextManager[None]:
        from isthmus.supervisor.claim.removal import held_claims

        return held_claims(federation, wanted)

    return hold


def print_others(others: Iterable[Orphan], file: str, console: Console) -> None:
    """Name the tasks that the file does not have and that have entities at its namespaces."""
    for task in dict.fromkeys(each.task for each in others):
        where = ", ".join(dict.fromkeys(each.alias for each in others if each.task == task))
        console.print(
            Text(
                f"note: task {task} has entities at {where} and is not in this file; unless another file has it, delete them "
                f"with: isthmus remove {file} {task}"
            )
        )


def _row(administrations: Administrations, orphan: Orphan) -> dict[str, Any]:
    change = orphan.change
    try:
        messages = 0 if orphan.is_claim else administrations.waiting(change)
    except IsthmusError:
        messages = None
    return {
        "namespace": orphan.alias,
        "kind": change.kind,
        "path": change.path,
        "task": orphan.task,
        "member": orphan.member,
        "messages": messages,
    }


def _table(rows: Sequence[dict[str, Any]]) -> FittingTable:
    table = FittingTable("namespace", "what", "of task", ">messages", title=f"{len(rows)} entities that nothing needs")
    for row in rows:
        messages = row["messages"]
        style = "" if messages == 0 else "bold red"
        count = Text("?" if messages is None else f"{messages:,}", style=style)
        table.add_row(row["namespace"], f"{row['kind']} {row['path']}", row["task"], count)
    return table
