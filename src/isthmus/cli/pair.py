"""`isthmus pair`: two namespaces kept in step, an alias for both, fail-over and fail-back.

What it is: options and output. What it is not: what is done (`isthmus.pairing`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.topology.file.duration import parse_ms
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load

if TYPE_CHECKING:
    from isthmus.pairing.pair_session import PairSession
    from isthmus.pairing.state import PairState

__all__ = ["register"]

_NAME = typer.Argument(metavar="NAME", help="The pair's name in the file.")
_FILE = typer.Argument(help="The federation file.")
_STATE = typer.Option(help="Folder that the pair keeps its state in; by default .isthmus/NAME beside the file.")
_JSON = typer.Option("--json", help="Print one JSON object.")
_DRY = typer.Option("--dry-run", help="Show what would change, and change nothing.")

_Name = Annotated[str, _NAME]
_File = Annotated[str, _FILE]
_State = Annotated[Path | None, _STATE]
_Json = Annotated[bool, _JSON]

_SIGNS = {"+": "green", "~": "yellow", "-": "red", "!": "red"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    pair = typer.Typer(no_args_is_help=True, help="Keep two namespaces in step, and fail over from one to the other.")
    for name, run in (
        ("create", _create),
        ("sync", _sync),
        ("status", _status),
        ("run", _run),
        ("failover", _failover),
        ("break", _break),
    ):
        pair.command(name)(run)
    pair.callback()(_options)
    app.add_typer(pair, name="pair")


def _options() -> None:
    """Keep two namespaces in step, and fail over from one to the other."""
    os.umask(0o077)


def _session(name: str, file: str, state: Path | None) -> PairSession:
    from isthmus.pairing.pair_session import PairSession, find_pair
    from isthmus.supervisor.status import state_folder

    federation = load(file)
    return PairSession(federation, find_pair(federation, name), state or state_folder(file))


def _create(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    dry_run: Annotated[bool, _DRY] = False,
    as_json: _Json = False,
) -> None:
    """Pair the two namespaces, and bring the secondary in step. Run again, it brings it in step again.

    What the secondary holds already and the primary does not stays. Exit code 1 if something could not be brought in step.
    """
    with _session(name, file, state) as session:
        if dry_run:
            _show_plan(session, as_json=as_json)
            return
        session.create()
        _sync_once(session, as_json=as_json)


def _sync(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    dry_run: Annotated[bool, _DRY] = False,
    delete_others: Annotated[
        bool,
        typer.Option(
            "--delete-others",
            help="Delete at the standby member also what pairing did not make and the active one lacks.",
        ),
    ] = False,
    delete_messages: Annotated[
        bool, typer.Option("--delete-messages", help="Delete entities although they hold messages.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Bring the standby member in step once. Exit code 1 if something could not be."""
    from isthmus.pairing.keeper import Consent

    consent = Consent(foreign=delete_others, messages=delete_messages)
    with _session(name, file, state) as session:
        if dry_run:
            _show_plan(session, consent, as_json=as_json)
        else:
            _sync_once(session, consent, as_json=as_json)


def _sync_once(session: PairSession, consent: Any = None, *, as_json: bool) -> None:
    console = Console(soft_wrap=True)
    state, found = session.sync(consent, (lambda step: None) if as_json else lambda step: _print([str(step)], console))
    if as_json:
        print(json.dumps({**_told(state), **found.to_dict()}))
    else:
        _print([f"! {step}: {error}" for step, error in found.failed], console)
        _print(map(str, found.drift.conflicts), console)
        _print_foreign([each.path for each in found.drift.foreign], state.standby, console)
        verdict = f"{state.standby} is in step with {state.active}" if found.is_in_step else "some differences stay"
        console.print(f"{len(found.done)} changes in {found.seconds:.1f} s; {verdict}.")
    if not found.is_in_step:
        raise typer.Exit(1)


def _show_plan(session: PairSession, consent: Any = None, *, as_json: bool) -> None:
    state, compared = session.compare(consent)
    drift = compared.drift
    standby = state.standby if state is not None else session.pair.secondary
    if as_json:
        told = {"pair": session.pair.name, "dry_run": True, "changes": [str(step) for step in drift.steps]}
        told["conflicts"] = [str(each) for each in drift.conflicts]
        print(json.dumps({**told, "only_at_standby": [each.path for each in drift.foreign]}))
        return
    console = Console(soft_wrap=True)
    _print(map(str, drift.steps), console)
    _print(map(str, drift.conflicts), console)
    _print_foreign([each.path for each in drift.foreign], standby, console)
    console.print(f"{len(drift.steps)} changes would be made at {standby}; nothing was changed.")


def _status(name: _Name, file: _File = DEFAULT_FILE, state: _State = None, as_json: _Json = False) -> None:
    """Show which member is active, how far the members are apart, and what waits.

    Exit code 0: steady, in step, and nothing pending. 1: anything else.
    """
    from isthmus.pairing.state import Fence, Phase

    with _session(name, file, state) as session:
        found = session.state()
        problem, lines, foreign = "", list[str](), list[str]()
        try:
            drift = session.keeper.compare(found).drift
            lines = [str(each) for each in (*drift.steps, *drift.conflicts)]
            foreign = [each.path for each in drift.foreign]
        except IsthmusError as error:
            problem = str(error)
    is_well = (
        not problem and not lines and found.phase is Phase.STEADY and found.fence_of(found.standby) is not Fence.PENDING
    )
    if as_json:
        told = {**_told(found), "ok": is_well, "drift": lines, "only_at_standby": foreign, "problem": problem}
        print(json.dumps({**told, "messages_seen": found.seen, "seen_at": found.seen_at}))
    else:
        console = Console(soft_wrap=True)
        led = found.leads_to or "nobody: connections wait"
        console.print(Text(f"pair {found.pair}: {found.active} is active, epoch {found.epoch}, {found.phase}"))
        if session.pair.listen:
            console.print(Text(f"the alias {session.pair.listen} leads to {led}"))
        console.print(Text(f"{found.standby} is standby, {_FENCES[found.fence_of(found.standby)]}"))
        if problem:
            console.print(Text(f"! not compared: {problem}", style="red"))
        _print(lines, console)
        _print_foreign(foreign, found.standby, console)
        if not problem:
            console.print("The members are in step." if not lines else f"{len(lines)} differences.")
        _print_seen(found, console)
    if not is_well:
        raise typer.Exit(1)


_FENCES = {
    "open": "open to applications that connect to it directly",
    "pending": "and still to be fenced: it has not answered since it was left",
    "closed": "fenced",
}


def _run(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the alias's address as one JSON object.")] = False,
) -> None:
    """Keep the pair in step and lead its alias, until SIGTERM or Ctrl-C.

    A fail-over that was interrupted is carried on. It never begins one by itself.
    """
    import asyncio

    from isthmus.pairing.pair_run import PairRun

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    logging.getLogger("azure").setLevel(logging.WARNING)
    with _session(name, file, state) as session:
        session.state()

        def ready(port: int) -> None:
            listen = f"{session.pair.listen.rpartition(':')[0]}:{port}" if port else ""
            if as_json:
                print(json.dumps({"pair": name, "listen": listen}), flush=True)
            else:
                print(f"pair {name}: " + (f"the alias is {listen}" if listen else "no alias") + "; Ctrl-C stops it")

        try:
            asyncio.run(PairRun(session, ready).run())
        except OSError as error:
            raise InvalidArgumentError(
                f"the alias cannot listen on {session.pair.listen}: {error.strerror or error}; write another listen:"
            ) from None


def _failover(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    force: Annotated[
        bool, typer.Option("--force", help="Switch at once, without the active member; messages may stay behind there.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give up a planned fail-over that was interrupted before the switch.")
    ] = False,
    consume_for: Annotated[
        str,
        typer.Option("--consume-for", help="How long receivers may empty the active member before the rest is moved."),
    ] = "10s",
    leave: Annotated[
        bool, typer.Option("--leave", help="Switch although messages that cannot be moved stay behind.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Make the standby member the active one; run again, fail back.

    Planned: sends are stopped, receivers empty the active member, the rest is moved, it is fenced, the alias turns. What was
    interrupted continues when it is run again. Exit code 1 if it went back, since messages would have stayed behind, or if a forced
    one could not open the new member yet.
    """
    if force and abort:
        raise InvalidArgumentError("--force and --abort contradict each other; leave one out")
    try:
        consume_ms = parse_ms(consume_for)
    except ValueError:
        raise InvalidArgumentError(f"--consume-for is '{consume_for}', which is no duration; write e.g. 30s") from None
    console = Console(soft_wrap=True, stderr=as_json)
    began = time.monotonic()

    def note(text: str) -> None:
        console.print(Text(f"{time.monotonic() - began:6.2f} s  {text}"))

    with _session(name, file, state) as session:
        if force:
            _force(session, note, began, as_json=as_json)
            return
        if abort:
            found = session.abort(note)
            told: dict[str, Any] = {"aborted": True}
            text = f"{found.active} is active again."
        else:
            found, work = session.fail_over(consume_ms=consume_ms, leaves=leave, note=note)
            told = {
                "moved": work.moved,
                "left": work.left,
                "moved_dead_letters": work.moved_dead,
                "left_dead_letters": work.left_dead,
                "left_deferred": work.left_deferred,
            }
            text = f"{found.active} is active; {work.moved} messages were moved"
            text += (
                f"; left behind at {found.standby}: {work.left}."
                if work.left
                else ", none that waited was left behind."
            )
            text += f" Dead letters moved: {work.moved_dead}."
            for what, left in (("Dead letters", work.left_dead), ("Deferred messages", work.left_deferred)):
                text += f" {what} that stay at {found.standby}: {left}." if left else ""
    told["seconds"] = round(time.monotonic() - began, 3)
    if as_json:
        print(json.dumps({**_told(found), **told}))
    else:
        console.print(Text(text))


def _force(session: PairSession, note: Any, began: float, *, as_json: bool) -> None:
    found = session.force()
    switched = round(time.monotonic() - began, 3)
    note(f"{found.phase}: the alias leads to {found.leads_to or 'nobody until the new member is open'}")
    pending = ""
    try:
        found = session.finish(note=note)
    except IsthmusError as error:
        pending = str(error)
        found = session.state()  # of what was left to do some was done
    if as_json:
        told = {"seconds": switched, "pending": pending, "may_be_lost": found.seen, "seen_at": found.seen_at}
        print(json.dumps({**_told(found), **told}))
    else:
        _show_forced(found, pending)
    if found.is_under_way:
        raise typer.Exit(1)


def _show_forced(found: PairState, pending: str) -> None:
    console = Console(soft_wrap=True)
    if found.is_under_way:
        told = f"{found.standby} is not open yet: {pending}. The alias leads to nobody; isthmus pair run opens it as soon as it answers."
        console.print(Text(told, style="red"))
        return
    console.print(Text(f"{found.active} is active."))
    if pending:
        console.print(
            Text(f"{found.standby} is not fenced yet: {pending}. isthmus pair run does it as soon as it answers; until then keep applications "
                 "that connect to it directly away from it.", style="yellow")
        )  # fmt: skip
    _print_seen(found, console, f"What may be lost with {found.standby}: what waited there")


def _break(name: _Name, file: _File = DEFAULT_FILE, state: _State = None, as_json: _Json = False) -> None:
    """End the pairing. Both namespaces stay, open to applications, with all that they hold."""
    with _session(name, file, state) as session:
        found = session.break_up()
    if as_json:
        print(json.dumps({"pair": name, "broken": True, "was_active": found.active}))
    else:
        print(f"pair {name} is broken; {found.active} was active, and both namespaces can be used")


def _told(state: PairState) -> dict[str, Any]:
    return {
        "pair": state.pair,
        "active": state.active,
        "standby": state.standby,
        "epoch": state.epoch,
        "phase": str(state.phase),
        "fence": str(state.fence_of(state.standby)),
        "leads_to": state.leads_to,
    }


def _print(lines: Iterable[str], console: Console) -> None:
    for line in lines:
        console.print(Text(line, style=_SIGNS.get(line[:1], "")))


def _print_foreign(paths: list[str], alias: str, console: Console) -> None:
    if paths:
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        console.print(Text(f"only at {alias}, and not made by pairing: {shown}"))


def _print_seen(state: PairState, console: Console, title: str = "") -> None:
    if not state.seen_at:
        console.print("Its messages have not been counted yet: isthmus pair run does it." if title else "")
        return
    age = time.time() - state.seen_at
    counts = {path: {name: count for name, count in each.items() if count} for path, each in state.seen.items()}
    head = title or f"Waiting at {state.active}"
    if not counts:
        console.print(f"{head}: nothing, {age:,.0f} s ago.")
        return
    console.print(f"{head}, {age:,.0f} s ago:")
    for path, each in counts.items():
        console.print(Text(f"  {path}: " + ", ".join(f"{count} {name}" for name, count in each.items())))
