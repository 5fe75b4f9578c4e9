"""`isthmus verify`: compare the messages that entered every member with those at the others."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isthmus.cli.candidate import tasks
from isthmus.errors import ConfigError, EntityNotFoundError, InvalidArgumentError, IsthmusError
from isthmus.supervisor.fitting_table import FittingTable
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load

if TYPE_CHECKING:
    from isthmus.replication.verification.reconciliation.reconcile import Reconciliation

__all__ = ["register"]


class _By(StrEnum):
    TASK = "task"
    HOUR = "hour"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("verify")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")] = DEFAULT_FILE,
    task: Annotated[str, typer.Option(help="Verify this task only.", autocompletion=tasks)] = "",
    subscription: Annotated[
        str,
        typer.Option(
            help="The subscription to read at every member, which no receiver may consume; by default `audit` if the task has "
            "it, else the first ordinary one without a filter, of which applications may have consumed messages."
        ),
    ] = "",
    former_mark: Annotated[
        list[str] | None,
        typer.Option(help="A former `mark` of the file: copies with it are arrivals. May be repeated."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run's state, for messages in spools; by default .isthmus/NAME beside the file."
        ),
    ] = None,
    by: Annotated[
        _By,
        typer.Option(
            help="With `hour`: count also by the hour (UTC) in which messages were enqueued at their origin; those without a known "
            "time there are in the row `unknown`."
        ),
    ] = _By.TASK,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Peek every member and compare by origin, sequence number and content.

    Exit code 0: everything is accounted for. 1: a message is lost, set aside, expired before its route, stopped although
    new, doubled, out of order, or different from its original. 3: the result is unclear, e.g. because messages were consumed
    from the subscription that it reads, or a namespace cannot be reached.
    """
    from isthmus.replication.verification.reconciliation.count import Verdict
    from isthmus.replication.verification.verify import verify
    from isthmus.topology.file.name import state_folder

    federation = load(file)
    if not federation.tasks:
        raise InvalidArgumentError(f"{file} has no tasks; there is nothing to verify")
    names = [task] if task or len(federation.tasks) < 2 else list(federation.tasks)
    results: list[Reconciliation] = []
    unread: dict[str, IsthmusError] = {}  # by task; an unreadable one hides nothing of the others
    for name in names:
        try:
            results += verify(
                federation,
                task=name,
                subscription=subscription,
                former_marks=former_mark or (),
                state_folder=state or state_folder(file),
                by_hour=by is _By.HOUR,
            )
        except ConfigError:
            raise
        except InvalidArgumentError as error:
            if len(names) < 2:
                raise
            unread[name] = error
        except IsthmusError as error:
            unread[name] = error
    verdict = max((result.verdict for result in results), default=Verdict.CLEAN)
    if unread:
        verdict = max(verdict, Verdict.UNCLEAR)
    rows = [result.to_dict() for result in results]
    if as_json:
        answer = {"file": file, "clean": verdict is Verdict.CLEAN, "verdict": verdict.name.lower(), "tasks": rows}
        errors = {name: error.to_dict() for name, error in unread.items()}
        print(json.dumps(answer | ({"error": next(iter(errors.values())), "unread": errors} if errors else {})))
    else:
        _show(rows, verdict, [_doubt_of(name, error, subscription) for name, error in unread.items()])
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _doubt_of(task: str, error: IsthmusError, subscription: str) -> str:
    hint = ""
    if isinstance(error, EntityNotFoundError):
        hint = " With --subscription every member has to have it" if subscription else " Make it by: isthmus apply"
    return (f"task {task}: " if task else "") + f"{error}{hint}"


def _show(results: list[dict[str, Any]], verdict: Any, unread: list[str]) -> None:
    from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict

    console = Console(soft_wrap=True)
    for result in results:
        console.print(_table(result))
        for table in _hour_tables(result):
            console.print(table)
        for reading in result["read"]:
            console.print(_reading(reading), style="dim", highlight=False)
        for doubt in result["doubts"]:
            console.print(f"cannot tell: {doubt}", style="yellow", highlight=False)
        for count in COUNTS:
            if count.verdict is Verdict.UNCLEAR and result[count.name]:
                text = f"cannot tell: {result[count.name]:,} {count.name}: {count.meaning}"
                console.print(text, style="yellow", highlight=False)
    if any(reading["shared"] and reading["doubt"] for result in results for reading in result["read"]):
        console.print(
            "write audit: 1d in the task and apply it: verify then reads what no application consumes", style="dim"
        )
    for each in unread:
        console.print(Text(f"cannot tell: {each}", style="yellow"))
    disordered = any(result["out_of_order"] for result in results)
    well = "nothing lost or doubled" if disordered else "nothing lost, doubled or out of order"
    words = {
        Verdict.CLEAN: (well, "green"),
        Verdict.UNCLEAR: ("CANNOT TELL: not all that entered can be read", "yellow"),
        Verdict.FAULTY: ("NOT CLEAN", "red"),
    }
    text, style = words[verdict]
    console.print(text, style=style)


def _reading(reading: dict[str, Any]) -> str:
    absent = reading["absent_before"] + reading["absent_between"]
    removed = f", {absent:,} earlier {'one is' if absent == 1 else 'ones are'} gone" if absent else ""
    count = reading["messages"]
    return f"read {reading['member']}: {reading['entity']}, {count:,} message{'' if count == 1 else 's'}{removed}"


def _hour_tables(result: dict[str, Any]) -> list[FittingTable]:
    """The tables of the task, and of each flow if there are several: one row for each hour."""
    if "hours" not in result:
        return []
    found = [_hour_table(f"task {result['task']}, by hour (UTC)", result["hours"])] if result["hours"] else []
    flows = [each for each in result["comparisons"] if each["hours"] and _is_flow(each)]
    if len(flows) > 1:
        found += [
            _hour_table(f"from {each['origin']} at {each['member']}, by hour (UTC)", each["hours"]) for each in flows
        ]
    return found


def _is_flow(compared: dict[str, Any]) -> bool:
    """Whether a comparison has more than the entry of messages at their origin."""
    if compared["origin"] != compared["member"]:
        return True
    return any(hour[name] for hour in compared["hours"] for name in hour.keys() - {"hour", "entered", "arrived"})


def _hour_table(title: str, hours: list[dict[str, Any]]) -> FittingTable:
    from isthmus.replication.verification.reconciliation.count import COUNTS

    names = [count.name for count in COUNTS if count.name in _ALWAYS_BY_HOUR or any(each[count.name] for each in hours)]
    table = FittingTable("hour", *(f">{name.replace('_', ' ')}" for name in names), title=title, names=1)
    for each in hours:
        hour = each["hour"].removesuffix(":00Z").replace("T", " ")
        table.add_row(hour, *(f"{each[name]:,}" if each[name] or name in _ALWAYS_BY_HOUR else "" for name in names))
    return table


# Shown by hour also if they are zero; the others only if they are not: the table above has them.
_ALWAYS_BY_HOUR = ("entered", "arrived", "lost")

# Shown also if they are zero; the others only if they are not.
_ALWAYS = ("entered", "arrived", "waiting", "expired", "dead_lettered", "lost", "duplicated", "out_of_order")


def _table(result: dict[str, Any]) -> FittingTable:
    from isthmus.replication.verification.reconciliation.count import COUNTS

    title = f"task {result['task']}"
    compared = result["comparisons"]
    names = [count.name for count in COUNTS if count.name in _ALWAYS or any(each[count.name] for each in compared)]
    table = FittingTable("from", "at", *(f">{name.replace('_', ' ')}" for name in names), title=title)
    for each in compared:
        table.add_row(each["origin"], each["member"], *(f"{each[name]:,}" for name in names))
    return table
