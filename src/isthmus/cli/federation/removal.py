"""The common part of `apply --prune` and `remove`: orphans listed with their messages, and deleted with consent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from isthmus.connectors.administration import Administrations, Applied
from isthmus.errors import IsthmusError
from isthmus.supervisor.fitting_table import FittingTable
from isthmus.topology import Change, Federation, NamespaceState
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.planning.orphan import Orphan, claims_at, removal

__all__ = ["OrphanFilledError", "Removal", "claims_of", "print_others", "print_spools", "remove_orphans", "spools_left"]


Claims = Callable[[Sequence[tuple[str, str]]], AbstractContextManager[None]]


class OrphanFilledError(IsthmusError):
    """Messages have arrived in an entity that was to be deleted since they were counted."""

    code = "orphan-filled"
    retryable = True

    def __init__(self, path: str = "", messages: int = 0) -> None:
        super().__init__("", path=path, messages=messages)

    def text(self) -> str:
        a = self.attributes
        return (
            f"{a.get('path')} was forwarded to while its messages were counted, and has {a.get('messages')} messages now; nothing forwards to "
            "it any more, and nothing was deleted: list it again, and delete it then"
        )


@dataclass
class Removal:
    """The result for orphans.

    Attributes:
        rows: each orphan as plain values for `--json`: namespace, kind, path, task, member, messages (None: not known).
        applied: the changes that were made; None without consent.
        error: why nothing was deleted in spite of consent.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    applied: Applied | None = None
    error: IsthmusError | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for `--json`."""
        answer = {"orphans": self.rows, "removed": self.applied.to_dict() if self.applied else None}
        return answer | ({"error": self.error.to_dict()} if self.error is not None else {})

    @property
    def deleted(self) -> tuple[str, ...]:
        """The deleted subscriptions, as the notes of a plan name them."""
        done = self.applied.done if self.applied is not None else ()
        return tuple(
            f"subscription {each.subscription} of {each.topic} at {each.alias}"
            for each in done
            if each.action == "delete"
        )

    @property
    def failed(self) -> bool:
        """Whether a deletion was refused, or not begun."""
        return self.error is not None or (self.applied is not None and not self.applied.is_whole)


def remove_orphans(
    administrations: Administrations,
    existing: Mapping[str, NamespaceState],
    orphans: Sequence[Orphan],
    *,
    consent: bool,
    console: Console | None,
    claims: Claims,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Removal:
    """List the orphans and their messages, and delete them with consent.

    Args:
        administrations: of the namespaces.
        existing: their entities.
        orphans: to delete.
        consent: whether to delete.
        console: for text; None for `--json`.
        claims: holds claims of tasks, by task and alias, within; raises if a run has one.
        is_stopped: checked before each change; once it returns true nothing more is deleted.
    """
    found = Removal([_row(administrations, each) for each in orphans])
    if console and orphans:
        console.print(_table(found.rows))
    if not consent or not orphans:
        return found

    def print_change(change: Change) -> None:
        if console:
            console.print(Text(f"{change.alias}: {change.action} {change.kind} {change.path}"))

    claimed = claims_at(existing, {each.task for each in orphans})
    try:
        with claims(claimed) if claimed else nullcontext():
            changes = removal(existing, orphans)
            # First the changes that end forwarding: only then are the messages in its target known.
            ended = tuple(each for each in changes if each.action == "update")
            deletions = tuple(each for each in changes if each.action != "update")
            first = administrations.make(ended, print_change, is_stopped)
            found.applied = replace(first, pending=first.pending + deletions)
            if first.is_whole:
                _recount(administrations, ended, orphans, found.rows)
                made = _delete(administrations, deletions, print_change, is_stopped)
                found.applied = replace(made, done=first.done + made.done)
    except IsthmusError as error:
        found.error = error
        if console:
            console.print(Text(str(error), style="red"))
        return found
    failed = found.applied.failed
    if console and failed is not None:
        answer = (
            f"{failed.alias}: {failed.action} {failed.kind} {failed.path} failed: {found.applied.error}; run it again"
        )
        console.print(Text(answer, style="red"))
    elif console and found.applied.pending:
        console.print(f"{len(found.applied.pending)} deletions not begun; run it again")
    return found


def claims_of(federation: Federation) -> Claims:
    """Holds claims at a federation's namespaces."""

    def take_claims(wanted: Sequence[tuple[str, str]]) -> AbstractContextManager[None]:
        from isthmus.supervisor.claim.removal import held_claims

        return held_claims(federation, wanted)

    return take_claims


def print_others(others: Iterable[Orphan], file: str, console: Console) -> None:
    """Print the tasks that the file does not have and that have entities at its namespaces."""
    for task in dict.fromkeys(each.task for each in others):
        where = ", ".join(dict.fromkeys(each.alias for each in others if each.task == task))
        console.print(
            Text(
                f"note: task {task} has entities at {where} and is not in this file; unless another file has it, delete them "
                f"with: isthmus remove {file} {task}"
            )
        )


def spools_left(federation: Federation, folder: Path) -> list[dict[str, Any]]:
    """Spools of a state folder whose messages no task of the file sends on: they have been removed from their source.

    Raises:
        InvalidArgumentError: the runs' notes of their spools cannot be read.
    """
    if not folder.exists():
        return []
    from isthmus.replication.shuffle.start import stranded
    from isthmus.topology.route import routes

    left = stranded(routes(federation), folder, federation.namespaces)
    return [{"spool": str(path), "messages": messages} for path, messages in left]


def print_spools(spools: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print the spools with messages that no task sends on."""
    for each in spools:
        console.print(
            Text(
                f"note: spool {each['spool']} has {each['messages']:,} messages that were taken from their source and that no task of the file "
                "sends on; it is not deleted: restore the task, and let it drain"
            )
        )


def _delete(
    administrations: Administrations,
    deletions: Sequence[Change],
    print_change: Callable[[Change], None],
    is_stopped: Callable[[], bool],
) -> Applied:
    """Delete; the topics of claims last, and only if no other operator has made a claim there meanwhile."""
    topics = tuple(each for each in deletions if each.kind == "topic" and each.topic.lower() == CLAIM_TOPIC)
    made = administrations.make([each for each in deletions if each not in topics], print_change, is_stopped)
    if not made.is_whole:
        return replace(made, pending=made.pending + topics)
    for index, topic in enumerate(topics):
        try:
            is_used = administrations.subscriptions(topic)
            last = Applied() if is_used else administrations.make([topic], print_change, is_stopped)
        except IsthmusError as error:
            last = Applied(failed=topic, error=error)
        made = replace(last, done=made.done + last.done)
        if not last.is_whole:
            return replace(made, pending=last.pending + topics[index + 1 :])
    return made


def _recount(
    administrations: Administrations, ended: Sequence[Change], orphans: Sequence[Orphan], rows: Sequence[dict[str, Any]]
) -> None:
    """Check whether more messages have been forwarded to an entity since they were counted.

    Raises:
        OrphanFilledError: they have.
    """
    targets = {
        (each.alias, str(target).lower())
        for each in ended
        for target in (getattr(each.before, "forward_to", ""), getattr(each.before, "forward_dead_letters_to", ""))
    }
    for orphan, row in zip(orphans, rows, strict=True):
        change = orphan.change
        if change.subscription or (change.alias, change.topic.lower()) not in targets or row["messages"] is None:
            continue
        messages = administrations.waiting(change)
        if messages > row["messages"]:
            raise OrphanFilledError(f"{change.alias}/{change.topic}", messages)


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
    table = FittingTable("namespace", "what", "of task", ">messages", title=f"{len(rows)} entities that no task needs")
    for row in rows:
        messages = row["messages"]
        style = "" if messages == 0 else "bold red"
        count = Text("?" if messages is None else f"{messages:,}", style=style)
        table.add_row(row["namespace"], f"{row['kind']} {row['path']}", row["task"], count)
    return table
