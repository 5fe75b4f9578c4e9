"""The output of `isthmus pair`.

A module of its own: a forced fail-over is made before the modules for output are imported.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from isthmus.cli.message.reader import is_ready
from isthmus.pairing.state.state import PairState, Phase

if TYPE_CHECKING:
    from isthmus.pairing.failover.failover import Failover
    from isthmus.pairing.keeper.round import Round
    from isthmus.topology.pair.difference import Step

__all__ = [
    "FENCES",
    "console",
    "counts",
    "failed_over",
    "fields",
    "print_foreign",
    "print_interrupted_abort",
    "print_interrupted_break",
    "print_left",
    "print_lines",
    "print_round",
    "print_seen",
    "print_text",
    "progress_printer",
    "show_forced",
    "step_printer",
]

_SIGNS = {"+": "green", "~": "yellow", "-": "red", "!": "red"}
FENCES = {
    "open": "open to applications that connect to it directly",
    "pending": "and still to be fenced: it has not answered since the fail-over",
    "closed": "fenced",
}


class _Console(Console):
    """Like its base, but where the reader of the output has ended it raises BrokenPipeError, and ends neither the process nor standard output."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(*, stderr: bool = False) -> Console:
    """The console of texts; lines are not wrapped."""
    return _Console(soft_wrap=True, stderr=stderr)


def progress_printer(on: Console) -> Callable[[str], None]:
    """A function that prints a text about work that goes on; if it cannot be written, e.g. as a connection of ssh was lost, or a terminal pauses, the
    work goes on all the same: an interrupted fail-over would keep applications from both members.
    """

    def note(text: str) -> None:
        with contextlib.suppress(OSError):
            if is_ready(on.file):
                print_text(text, on)

    return note


def print_text(text: str, on: Console, style: str = "") -> None:
    """Print a text literally: names in it are not markup."""
    on.print(Text(text, style=style))


def step_printer(on: Console, *, quiet: bool) -> Callable[[Step], None]:
    """A function that prints a step as soon as it is made."""

    def show(step: Step) -> None:
        with contextlib.suppress(OSError):  # as for `progress_printer`
            if is_ready(on.file):
                print_lines([str(step)], on)

    return (lambda step: None) if quiet else show


def counts(work: Failover) -> dict[str, Any]:
    """The counts of a planned fail-over as plain values."""
    return {
        "moved": work.moved,
        "left": work.left,
        "moved_dead_letters": work.moved_dead,
        "left_dead_letters": work.left_dead,
        "left_deferred": work.left_deferred,
        "refused": work.refused,
    }


def print_round(state: PairState, found: Round, on: Console) -> None:
    """Print the result of a round, whose steps are printed already."""
    print_lines([f"! {step}: {error}" for step, error in found.failed], on)
    print_lines(map(str, found.drift.conflicts), on)
    print_foreign([each.path for each in found.drift.foreign], state.standby, on)
    verdict = f"{state.standby} is in step with {state.active}" if found.is_in_step else "some differences remain"
    if found.pending:
        verdict = f"interrupted, {len(found.pending)} changes are left; run it again"
    on.print(f"{len(found.done)} changes in {found.seconds:.1f} s; {verdict}.")


def show_forced(found: PairState, pending: str) -> None:
    """Print the result of a forced fail-over; `pending` is the reason of unfinished work."""
    on = console()
    if found.is_in_progress:
        text = f"{found.standby} is not open yet: {pending}. The alias forwards to no member; isthmus pair run opens it as soon as it answers."
        print_text(text, on, "red")
        return
    print_text(f"{found.active} is active.", on)
    if pending:
        text = f"{found.standby} is not fenced yet: {pending}. isthmus pair run does it as soon as it answers; until then keep applications "
        print_text(text + "that connect to it directly away from it.", on, "yellow")
    print_seen(found, found.standby, on, f"Messages that may be lost with {found.standby}: those that waited there")


def failed_over(found: PairState, work: Failover) -> str:
    """The result of a planned fail-over, as text."""
    text = f"{found.active} is active; {work.moved} messages were moved"
    text += f"; left behind at {found.standby}: {work.left}." if work.left else ", no waiting message was left behind."
    text += f" Dead letters moved: {work.moved_dead}."
    for what, left in (("Dead letters", work.left_dead), ("Deferred messages", work.left_deferred)):
        text += f" {what} that stay at {found.standby}: {left}." if left else ""
    return text


def aborted(found: PairState, waiting: object) -> str:
    """The result of a fail-over that was given up, as text.

    Args:
        found: the state after it.
        waiting: the counts of messages that wait at the standby member; empty where there are none or it does not answer.
    """
    text = f"{found.active} is active again."
    if waiting:
        text += f" Messages that wait at {found.standby}, where they may have been moved, are delivered once that is active: {waiting}."
    if found.moved_dead:  # they are not in the count of waiting messages
        text += f" Dead letters that were moved to {found.standby}, and stay there: {found.moved_dead}."
    return text


def print_interrupted_abort(found: PairState, *, as_json: bool) -> None:
    """Print what has become of a fail-over whose abort was interrupted."""
    is_given_up = found.phase in (Phase.REOPENING, Phase.STEADY)
    if not is_given_up:
        text = f"it is not given up, and still in progress ({found.phase}); run the same command again"
    elif found.is_in_progress:
        text = (
            f"it is given up, and {found.active} is not open yet: isthmus pair run opens it, or the same command again"
        )
    else:
        text = f"{found.active} is active (epoch {found.epoch})"
    if as_json:
        print(json.dumps({**fields(found), "aborted": is_given_up, "pending": "interrupted"}))
    print_text(f"interrupted: {text}", console(stderr=True))


def print_interrupted_break(pair: str, *, is_broken: bool, as_json: bool) -> None:
    """Print whether a pair is broken whose break was interrupted."""
    text = "is broken" if is_broken else "is not broken, and a member may be open already; run the same command again"
    if as_json:
        print(json.dumps({"pair": pair, "broken": is_broken, "pending": "interrupted"}))
    print_text(f"interrupted: pair {pair} {text}", console(stderr=True))


def fields(state: PairState) -> dict[str, Any]:
    """A state as plain values."""
    return {
        "pair": state.pair,
        "active": state.active,
        "standby": state.standby,
        "epoch": state.epoch,
        "phase": str(state.phase),
        "fence": str(state.fence_of(state.standby)),
        "leads_to": state.leads_to,
    }


def print_lines(lines: Iterable[str], on: Console) -> None:
    """Differences, each in the colour of its sign."""
    for line in lines:
        on.print(Text(line, style=_SIGNS.get(line[:1], "")))


def print_foreign(paths: list[str], alias: str, on: Console) -> None:
    """Entities that only the standby member has."""
    if paths:
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        on.print(Text(f"only at {alias}, and not made by pairing: {shown}"))


def print_seen(state: PairState, alias: str, on: Console, title: str = "") -> None:
    """The messages that waited at a member at the last count."""
    seen, seen_at = state.seen_at_member(alias)
    if not seen_at:
        on.print("Its messages have not been counted yet: isthmus pair run does it." if title else "")
        return
    age = time.time() - seen_at
    counts = {path: {name: count for name, count in each.items() if count} for path, each in seen.items()}
    head = title or f"Waiting at {alias}"
    if not counts:
        on.print(f"{head}: nothing, {age:,.0f} s ago.")
        return
    on.print(f"{head}, {age:,.0f} s ago:")
    _print_counts(counts, on)


def print_left(left: Mapping[str, Mapping[str, int]], standby: str, on: Console) -> None:
    """The messages of a fenced member."""
    if left:
        on.print(f"At {standby}, which is fenced, are messages that no receiver gets before a fail-back:")
        _print_counts({path: {name: count for name, count in each.items() if count} for path, each in left.items()}, on)


def _print_counts(counts: Mapping[str, Mapping[str, int]], on: Console) -> None:
    for path, each in counts.items():
        on.print(Text(f"  {path}: " + ", ".join(f"{count} {name}" for name, count in each.items())))
