"""`isthmus resume`: let a paused task continue."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.cli.candidate import tasks
from isthmus.cli.supervision.pause import State, print_json, run_of, state_of

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("resume")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")],
    task: Annotated[str, typer.Argument(help="The task.", autocompletion=tasks)],
    state: State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let a task continue that `isthmus pause` has paused.

    A task that is no longer in the file is resumed, too: otherwise a new task of its name would start paused.
    """
    from isthmus.supervisor.pause import PauseFile

    folder = state_of(file, task, state, may_be_removed=True)
    was_paused = PauseFile(folder).resume(task)
    if as_json:
        print_json(folder, file, task, is_paused=False, has_changed=was_paused)
        return
    if not was_paused:
        print(f"task {task} is not paused in {folder}")
        return
    process, moves = run_of(folder, task)
    if moves:
        print(f"task {task} continues; the run by process {process} follows within a second")
    elif process:
        print(f"task {task} continues when a run of it starts; the run by process {process} does not move it")
    else:
        print(f"task {task} continues when a run of it starts; none is alive in {folder}")
