"""`isthmus redrive`: send to their targets the messages that routes have set aside."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.interruption import LEAVES_QUEUE, interruption, terminable

if TYPE_CHECKING:
    from isthmus.operations.redrive.set_aside import Choice
    from isthmus.replication.namespace_clients import NamespaceClients
    from isthmus.topology.model import Federation
    from isthmus.topology.redrive import Redrive

__all__ = ["register"]

_TOTALS = ("found", "chosen", "sent", "dropped", "refused", "left")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("redrive")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")],
    tasks: Annotated[list[str] | None, typer.Argument(metavar="TASK", help="Tasks; by default all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this only the counts are shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the counts only; the default.")] = False,
    reason: Annotated[
        list[str] | None,
        typer.Option(
            help="Send those with this DeadLetterReason, and no others. May be repeated. By default those that can succeed when sent "
            "again; the table shows which."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(help="At most so many for each row of the table, the oldest first; 0: all.", min=0)
    ] = 0,
    parked: Annotated[
        bool,
        typer.Option(
            "--parked", help="The messages of spillover's parking queues, back into the queue in which each failed."
        ),
    ] = False,
    diverted: Annotated[
        bool,
        typer.Option(
            "--diverted",
            help="The messages that steps have diverted (divert_to), through the steps again to the targets of their routes.",
        ),
    ] = False,
    expired: Annotated[
        bool,
        typer.Option("--expired", help="Also those whose time to live is over; their copies have none."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send the messages that routes have set aside to the routes' targets, as the same copies.

    Each message leaves its queue once its copy is acknowledged; refused ones stay. Killed at any time and run again
    it loses nothing, and doubles nothing if the target detects duplicates by origin. Ctrl-C ends it after pending answers. Exit code 1 if a message was refused or is
    locked by another receiver, or a namespace cannot be reached.
    """
    from isthmus.errors import InvalidArgumentError
    from isthmus.operations.redrive.set_aside import Choice
    from isthmus.replication.namespace_clients import NamespaceClients
    from isthmus.topology.file.source import load
    from isthmus.topology.redrive import redrives

    if yes and dry_run:
        raise InvalidArgumentError("write only one of --yes and --dry-run")
    if parked and diverted:
        raise InvalidArgumentError("write only one of --parked and --diverted")
    federation = load(file)
    choice = Choice(reasons=frozenset(reason or ()), count=count, expired=expired)
    with NamespaceClients(federation, "isthmus-redrive") as clients:
        queues = redrives(federation, tasks or (), parked=parked, diverted=diverted)
        with terminable():  # while a queue is counted: the messages of earlier queues are reported
            rows, is_interrupted = _queues(clients, federation, queues, choice, yes=yes, quiet=as_json)
    if not (parked or diverted or as_json):
        _note_parking(federation, tasks or list(federation.tasks))
    if as_json:
        totals = {name: sum(row[name] or 0 for row in rows) for name in _TOTALS}
        print(json.dumps({"file": file, "dry_run": not yes, **totals, "queues": rows}))
    else:
        _show(rows, yes=yes)
    if is_interrupted:
        raise typer.Exit(130)
    if any(row["refused"] or row["left"] or row["error"] for row in rows):
        raise typer.Exit(1)


def _queues(
    clients: NamespaceClients, federation: Federation, queues: list[Redrive], choice: Choice, *, yes: bool, quiet: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The result of each queue until the end or Ctrl-C, and whether it was Ctrl-C."""
    rows: list[dict[str, Any]] = []
    for each in queues:
        has_sent = any(row["sent"] or row["dropped"] for row in rows)
        try:
            row, is_interrupted = _queue(clients, federation, each, choice, yes=yes, has_sent=has_sent, quiet=quiet)
        except KeyboardInterrupt:
            if not has_sent:
                raise
            return rows, True
        rows.append(row)
        if is_interrupted:
            return rows, True
    return rows, False


def _queue(
    clients: NamespaceClients,
    federation: Federation,
    each: Redrive,
    choice: Choice,
    *,
    yes: bool,
    has_sent: bool,
    quiet: bool,
) -> tuple[dict[str, Any], bool]:
    """Count one queue and send the chosen messages; returns the result, and whether Ctrl-C ended it. A fault of the file ends the verb only if nothing was sent before."""
    from isthmus.cli.progress import progress
    from isthmus.errors import ConfigError, EntityNotFoundError, IsthmusError
    from isthmus.operations.redrive.redrive import Redriven, redrive
    from isthmus.operations.redrive.set_aside import SetAside, count_queue
    from isthmus.replication.namespace_clients import name_places

    found, done, error, chosen = None, Redriven(), "", 0
    is_interrupted = False
    is_other = not (each.can_look and federation.namespaces[each.source.alias].is_service_bus)
    if not is_other:
        try:
            client = clients.open(each.source)
            try:
                with progress(f"counting {each.source}", quiet=quiet) as note:
                    found = count_queue(client, each, choice, progress=note)
            finally:
                client.close(1.0)
            chosen = found.chosen.count()
            if yes and chosen and each.hindrance:
                error = each.hindrance
            elif yes and chosen:
                to = ", ".join(dict.fromkeys(str(route.target) for route in each.routes))
                with (
                    interruption(LEAVES_QUEUE) as is_stopped,
                    progress(f"sending to {to}", chosen, quiet=quiet) as note,
                ):
                    done = redrive(clients, federation, each, found, choice, progress=note, is_stopped=is_stopped)
                    is_interrupted = is_stopped()
                was_cut = "interrupted: run it again to send the rest" if is_interrupted and done.left else ""
                error = done.failure or was_cut or _locked(done.locked_sessions)
        except EntityNotFoundError:
            error = f"there is no {each.source}; isthmus apply makes it"
            done.left = chosen
        except IsthmusError as raised:
            if isinstance(raised, ConfigError) and not has_sent:
                raise
            error = str(raised)
            done.left = chosen
    is_read = found is not None
    found = found or SetAside()
    targets = [route.target for route in each.routes if not route.target.is_table]
    aliases = dict.fromkeys((each.source.alias, *(target.alias for target in targets)))
    row = {
        "task": each.route.task,
        "route": each.route.name,
        "from": str(each.source),
        "to": ", ".join(dict.fromkeys(str(route.target) for route in each.routes)),
        "reasons": dict(found.reasons.most_common()),
        "found": found.reasons.total() if is_read else None,  # not counted
        "chosen": chosen,
        "expired": found.expired,
        "deferred": found.deferred,
        "scheduled": found.scheduled,
        "foreign": found.foreign,
        "dead_lettered": found.dead_lettered,
        **{name: value for name, value in asdict(done).items() if name != "failure"},
        "note": each.hindrance if is_other or chosen else "",
        "error": name_places(error, federation, aliases),
    }
    return row, is_interrupted


def _locked(sessions: list[str]) -> str:
    """What keeps the messages of these sessions, and what to do; empty if there are none."""
    if not sessions:
        return ""
    others = f" and {len(sessions) - 1:,} more" if len(sessions) > 1 else ""
    return f"another receiver has the session {sessions[0]!r}{others}: run it again when that has closed or its lock has expired"


def _note_parking(federation: Federation, names: list[str]) -> None:
    from isthmus.topology.pattern.spillover import SpilloverTask

    parking = [name for name in names if isinstance(federation.tasks[name], SpilloverTask)]
    if parking:
        print(
            f"{', '.join(parking)}: messages that the routes set aside are parked; --parked sends them to their queue again",
            file=sys.stderr,
        )


def _show(rows: list[dict[str, Any]], *, yes: bool) -> None:
    from rich.console import Console

    from isthmus.supervisor.fitting_table import FittingTable

    console = Console(soft_wrap=True)
    names = ("found", "chosen", *(("sent", "dropped", "refused", "left") if yes else ()))
    table = FittingTable("from", "to", "reasons", *(f">{name}" for name in names), title="set aside")
    for row in rows:
        reasons = ", ".join(f"{count:,} {reason or 'without reason'}" for reason, count in row["reasons"].items())
        table.add_row(
            row["from"], row["to"], reasons, *("?" if row[name] is None else f"{row[name]:,}" for name in names)
        )
    console.print(table)
    for row in rows:
        if row["first_refusal"]:
            print(f"{row['route']}: first refusal: {row['first_refusal']}", file=sys.stderr)
        if row["error"] or row["note"]:
            print(f"{row['route']}: {row['error'] or row['note']}", file=sys.stderr)
    for queue, count in {row["from"]: row["foreign"] for row in rows if row["foreign"]}.items():
        console.print(f"{count:,} messages in {queue} are of no route of this file, or have lost their provenance")
    dead: Counter[str] = Counter()
    for row in rows:
        dead[row["from"]] += row["dead_lettered"]
    for queue, count in (+dead).items():
        alias, _, entity = queue.partition("/")
        console.print(
            f"{count:,} messages are in {queue}/$DeadLetterQueue: isthmus resubmit {entity} --namespace {alias} puts them back into the queue"
        )
    expired = sum(row["expired"] for row in rows)
    if expired:
        console.print(f"{expired:,} messages are not chosen because their time to live is over; --expired chooses them")
    deferred, scheduled = (sum(row[name] for row in rows) for name in ("deferred", "scheduled"))
    if deferred:
        console.print(
            f"{deferred:,} messages are not chosen because they are deferred: their receiver gets them by their sequence numbers"
        )
    if scheduled:
        console.print(
            f"{scheduled:,} messages are not chosen because they are scheduled: they can be sent when they are active"
        )
    chosen = sum(row["chosen"] for row in rows)
    others = sum(row["found"] or 0 for row in rows) - chosen - expired - deferred - scheduled
    if others:
        console.print(
            f"{others:,} messages have other reasons, or are beyond --count; --reason REASON chooses by reason"
        )
    if not yes:
        console.print(f"{chosen:,} messages would be sent; --yes sends them")
