"""`isthmus pair`: two namespaces kept in step, an alias for both, fail-over and fail-back.

What it is: options and output. What it is not: the operations (`isthmus.pairing`).
A little over 400 lines: the verbs with their options and helps, which are most of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.hang_up import outlived
from isthmus.cli.message.result import unfailing
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.topology.file.duration import parse_ms
from isthmus.topology.file.name import DEFAULT_FILE, state_folder

if TYPE_CHECKING:
    from isthmus.pairing.pair_session import PairSession

__all__ = ["register"]

_NAME = typer.Argument(metavar="NAME", help="The pair's name in the file.")
_FILE = typer.Argument(help="The federation file.")
_STATE = typer.Option(help="Folder of the pair's state; by default .isthmus/NAME beside the file.")
_JSON = typer.Option("--json", help="Print one JSON object.")
_DRY = typer.Option("--dry-run", help="Show what would change, and change nothing.")
_CARRIED_ON = "interrupted: the present step is finished; Ctrl-C again ends immediately"

_INTERRUPTED = "interrupted"

_Name = Annotated[str, _NAME]
_File = Annotated[str, _FILE]
_State = Annotated[Path | None, _STATE]
_Json = Annotated[bool, _JSON]


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
    from isthmus.topology.file.source import load

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

    Entities that only the secondary has stay. Ctrl-C ends it after the present change. Exit code 1 if something could not be brought in step.
    """
    with _session(name, file, state) as session:
        if dry_run:
            _show_plan(session, as_json=as_json)
        else:
            _sync_once(session, as_json=as_json, is_new=True)


def _sync(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    dry_run: Annotated[bool, _DRY] = False,
    delete_others: Annotated[
        bool,
        typer.Option(
            "--delete-others",
            help="Delete at the standby member also entities that pairing did not make and the active one lacks.",
        ),
    ] = False,
    delete_messages: Annotated[
        bool, typer.Option("--delete-messages", help="Delete entities although they have messages.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Bring the standby member in step once. Ctrl-C ends it after the present change. Exit code 1 if something could not be."""
    from isthmus.pairing.keeper.round import Consent

    consent = Consent(foreign=delete_others, messages=delete_messages)
    with _session(name, file, state) as session:
        if dry_run:
            _show_plan(session, consent, as_json=as_json)
        else:
            _sync_once(session, consent, as_json=as_json)


def _sync_once(session: PairSession, consent: Any = None, *, as_json: bool, is_new: bool = False) -> None:
    from isthmus.cli import pair_view as view
    from isthmus.cli.interruption import CHANGES, interruption

    console = view.console()
    with interruption(CHANGES) as is_stopped:
        if is_new:
            session.create()
        on_step = view.step_printer(console, quiet=as_json)
        state, found = session.sync(consent, on_step, is_stopped)
    if as_json:
        print(json.dumps({**view.fields(state), **found.to_dict()}))
    else:
        view.print_round(state, found, console)
    if not found.is_in_step:
        raise typer.Exit(130 if found.pending else 1)


def _show_plan(session: PairSession, consent: Any = None, *, as_json: bool) -> None:
    from isthmus.cli import pair_view as view

    state, compared = session.compare(consent)
    drift = compared.drift
    standby = state.standby if state is not None else session.pair.secondary
    if as_json:
        answer = {"changes": [str(step) for step in drift.steps], "conflicts": [str(each) for each in drift.conflicts]}
        answer["only_at_standby"] = [each.path for each in drift.foreign]
        print(json.dumps({"pair": session.pair.name, "dry_run": True, **answer}))
        return
    console = view.console()
    view.print_lines(map(str, drift.steps), console)
    view.print_lines(map(str, drift.conflicts), console)
    view.print_foreign([each.path for each in drift.foreign], standby, console)
    console.print(f"{len(drift.steps)} changes would be made at {standby}; nothing was changed.")


def _status(name: _Name, file: _File = DEFAULT_FILE, state: _State = None, as_json: _Json = False) -> None:
    """Show which member is active, how far the members are apart, and which messages wait.

    Exit code 0: steady, in step, and nothing pending. 1: anything else.
    """
    from isthmus.cli import pair_view as view
    from isthmus.pairing.state.state import Fence, Phase
    from isthmus.topology.pair.difference import Drift

    with _session(name, file, state) as session:
        found = session.state()
        problem, lines, foreign = "", list[str](), list[str]()
        left: dict[str, dict[str, int]] = {}
        outdated = session.keeper.outdated(found)
        try:
            # By an outdated state the wrong member would be advised to change.
            drift = session.keeper.compare(found).drift if not outdated else Drift()
            lines = [str(each) for each in (*drift.steps, *drift.conflicts)]
            foreign = [each.path for each in drift.foreign]
            left = session.keeper.left_behind(found) if not outdated else {}
        except IsthmusError as error:
            problem = str(error)
        problem = outdated or problem
    is_well = (
        not problem and not lines and found.phase is Phase.STEADY and found.fence_of(found.standby) is not Fence.PENDING
    )
    if as_json:
        answer = {**view.fields(found), "ok": is_well, "drift": lines, "only_at_standby": foreign, "problem": problem}
        seen, seen_at = found.seen_at_member(found.active)
        print(json.dumps({**answer, "messages_seen": seen, "seen_at": seen_at, "left_behind": left}))
    else:
        console = view.console()
        led = found.leads_to or "no member: connections wait"
        view.print_text(f"pair {found.pair}: {found.active} is active, epoch {found.epoch}, {found.phase}", console)
        if session.pair.listen:
            view.print_text(f"the alias {session.pair.listen} forwards to {led}", console)
        view.print_text(f"{found.standby} is standby, {view.FENCES[found.fence_of(found.standby)]}", console)
        if problem:
            view.print_text(f"! not compared: {problem}", console, "red")
        view.print_lines(lines, console)
        view.print_foreign(foreign, found.standby, console)
        if not problem:
            console.print("The members are in step." if not lines else f"{len(lines)} differences.")
        view.print_seen(found, found.active, console)
        view.print_left(left, found.standby, console)
    if not is_well:
        raise typer.Exit(1)


def _run(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the alias's address as one JSON object.")] = False,
) -> None:
    """Keep the pair in step and forward its alias, until SIGTERM or Ctrl-C.

    A fail-over that was interrupted is continued. It never begins one by itself.
    """
    import asyncio

    from isthmus.pairing.pair_run import PairRun

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    logging.getLogger("azure").setLevel(logging.WARNING)
    # Its serializer warns about each time of an entity whose status is set, though the service's times are UTC.
    logging.getLogger("azure.servicebus.management").setLevel(logging.ERROR)
    with _session(name, file, state) as session:
        session.state()

        def ready(port: int) -> None:
            listen = f"{session.pair.listen.rpartition(':')[0]}:{port}" if port else ""
            if as_json:
                print(json.dumps({"pair": name, "listen": listen}), flush=True)
            else:
                alias = f"the alias is {listen}" if listen else "no alias"
                print(f"pair {name}: {alias}; Ctrl-C stops it", flush=True)

        asyncio.run(PairRun(session, ready).run())


@outlived()  # half of a fail-over would keep applications from both members, and a connection of ssh is often lost in an outage
def _failover(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    force: Annotated[
        bool, typer.Option("--force", help="Switch now, without the active member; messages may stay behind there.")
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ALIAS",
            help="With --force: the member that is to be active. Repeated, it switches to the same member, while --force alone switches back.",
        ),
    ] = "",
    abort: Annotated[
        bool,
        typer.Option(
            "--abort",
            help="Give up a fail-over before the switch: a planned one that was interrupted, or a forced one whose new member does not open.",
        ),
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

    Planned: sends are stopped, receivers empty the active member, the rest is moved, it is fenced, the alias switches. An interrupted
    fail-over continues when it is run again; Ctrl-C ends it once the present entity is moved. Exit code 1 if it went back, since messages would have stayed behind, or if a forced
    one could not open the new member yet.
    """
    if force and abort:
        raise InvalidArgumentError("--force and --abort contradict each other; omit one")
    if to and not force:
        raise InvalidArgumentError("--to goes with --force")
    try:
        consume_ms = parse_ms(consume_for)
    except ValueError:
        raise InvalidArgumentError(f"--consume-for is '{consume_for}', which is not a duration; e.g. 30s") from None
    began = time.monotonic()
    folder = state or state_folder(file)
    if force:
        _force(name, file, folder, began, to, as_json=as_json)
        return
    from isthmus.cli import pair_view as view
    from isthmus.cli.interruption import interruption, terminable
    from isthmus.connectors.administration import NamespaceUnreachableError
    from isthmus.pairing.pair_error import StoppingError

    console = view.console(stderr=as_json)
    show = view.progress_printer(console)

    def note(text: str) -> None:
        show(f"{time.monotonic() - began:6.2f} s  {text}")

    with _session(name, file, state) as session:
        if abort:
            answer: dict[str, Any] = {"aborted": True}
            try:
                with terminable():
                    found = session.abort(note)
                    with contextlib.suppress(IsthmusError):  # it is given up, whatever the other member answers
                        answer["waiting_at_standby"] = session.waiting_at(found.standby)
            except KeyboardInterrupt:
                view.print_interrupted_abort(session.state(), as_json=as_json)
                raise typer.Exit(130) from None
            if found.moved_dead:
                answer["moved_dead_letters"] = found.moved_dead
            text = view.aborted(found, answer.get("waiting_at_standby"))
        else:
            try:
                with interruption(_CARRIED_ON, outlives_terminal=True) as session.is_stopping:
                    found, work = session.fail_over(consume_ms=consume_ms, leaves=leave, note=note)
            except StoppingError as error:
                if as_json:
                    print(json.dumps({**view.fields(session.state()), "error": error.to_dict()}))
                view.print_text(str(error), view.console(stderr=True))
                raise typer.Exit(130) from None
            except NamespaceUnreachableError as error:
                active = session.state().active
                if error.endpoint == session.members[active].endpoint:
                    error.add_note(f"if {active} is lost, --force makes the other one active without it")
                raise
            answer = view.counts(work)
            text = view.failed_over(found, work)
    answer["seconds"] = round(time.monotonic() - began, 3)
    with unfailing(f"isthmus pair status {name} shows what was done"):
        if as_json:
            print(json.dumps({**view.fields(found), **answer}))
        else:
            view.print_text(text, console)


def _force(name: str, file: str, folder: Path, began: float, to: str, *, as_json: bool) -> None:
    from isthmus.pairing.failover.forced import switch_at_once

    found = switch_at_once(file, name, folder, to)
    switched = time.monotonic() - began
    try:
        session = _session(name, file, folder)
    except IsthmusError as error:
        if found is not None:
            text = f"the fail-over was made all the same: {found.active} is the active member (epoch {found.epoch}); do not run it again"
            error.add_note(text)
        raise
    from isthmus.cli import pair_view as view
    from isthmus.cli.interruption import terminable

    show = view.progress_printer(view.console(stderr=as_json))

    def note(text: str, seconds: float | None = None) -> None:
        show(f"{time.monotonic() - began if seconds is None else seconds:6.2f} s  {text}")

    pending = ""
    with session:
        if found is None:
            found = session.force(to)
            switched = time.monotonic() - began
        note(f"{found.phase}: the alias forwards to {found.leads_to or 'no member until one is open'}", switched)
        try:
            with terminable():
                found = session.finish(note=note)
                if to and found.target != to:  # another machine's fail-over was missed, and is followed now
                    session.force(to)
                    found = session.finish(note=note)
        except (IsthmusError, KeyboardInterrupt) as error:
            pending = str(error) or _INTERRUPTED
            found = session.state()  # some of the remaining work was done
    with unfailing(f"isthmus pair status {name} shows what was done"):
        if as_json:
            seen, seen_at = found.seen_at_member(found.active if found.is_in_progress else found.standby)
            answer = {"seconds": round(switched, 3), "pending": pending, "may_be_lost": seen, "seen_at": seen_at}
            print(json.dumps({**view.fields(found), **answer}))
        else:
            view.show_forced(found, pending)
    if found.is_in_progress or pending == _INTERRUPTED:
        raise typer.Exit(130 if pending == _INTERRUPTED else 1)


def _break(
    name: _Name,
    file: _File = DEFAULT_FILE,
    state: _State = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if a member does not answer; it is left unchanged, fenced if it was."),
    ] = False,
    as_json: _Json = False,
) -> None:
    """End the pairing. Both namespaces stay, open to applications, with all their messages. Interrupted, it continues when it is run again."""
    from isthmus.cli.interruption import terminable

    with _session(name, file, state) as session:
        try:
            with terminable():
                found, left = session.break_up(is_forced=force)
        except KeyboardInterrupt:
            from isthmus.cli import pair_view as view

            view.print_interrupted_break(name, is_broken=not session.file.path.exists(), as_json=as_json)
            raise typer.Exit(130) from None
    if as_json:
        answer = {"pair": name, "broken": True, "was_active": found.active}
        print(json.dumps({**answer, "left_as_is": left} if left else answer))
    else:
        reasons = "; ".join(f"{alias} is left unchanged: {reason}" for alias, reason in left.items())
        print(f"pair {name} is broken; {found.active} was active. {reasons or 'Both namespaces can be used'}")
