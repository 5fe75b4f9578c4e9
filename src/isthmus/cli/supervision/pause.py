"""`isthmus pause`: stops a task until `isthmus resume`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.candidate import tasks

__all__ = ["State", "print_json", "register", "run_of", "state_of"]

State = Annotated[
    Path | None,
    typer.Option("--state", help="Folder of the run's state; by default .isthmus/NAME beside the file."),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("pause")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")],
    task: Annotated[str, typer.Argument(help="The task.", autocompletion=tasks)],
    state: State = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Pause a task: its routes finish their messages in flight, and receive no more until `isthmus resume`.

    It persists over restarts of the run, and does not require a running one. Messages wait at their sources meanwhile.
    """
    from isthmus.errors import InvalidArgumentError
    from isthmus.supervisor.pause import PauseFile
    from isthmus.topology.file.source import load
    from isthmus.topology.route import routes

    folder = state_of(file, task, state)
    federation = load(file)
    if task in federation.tasks and not routes(federation, task):
        raise InvalidArgumentError(
            f"task {task} has no routes that could be paused: the namespaces forward its messages themselves; suspended: in the "
            "task stops an entity"
        )
    is_new = PauseFile(folder).pause(task)
    if as_json:
        print_json(folder, file, task, is_paused=True, has_changed=is_new)
        return
    _print_change(folder, task, f"task {task} is paused" if is_new else f"task {task} is paused already")


def state_of(file: str, task: str, state: Path | None, *, may_be_removed: bool = False) -> Path:
    """The state folder, after the task has been looked up; if the file does not have it any more, a running run may still move it, or it
    `may_be_removed` and is paused there.

    Raises:
        InvalidArgumentError: there is no such task.
        PauseFileError: the file of paused tasks cannot be read.
    """
    from isthmus.errors import InvalidArgumentError
    from isthmus.supervisor.pause import PauseFile
    from isthmus.topology.file.name import state_folder
    from isthmus.topology.file.source import load

    federation, folder = load(file), state or state_folder(file)
    is_known = task in federation.tasks or run_of(folder, task)[1]
    if not is_known and not (may_be_removed and task in PauseFile(folder).tasks()):
        raise InvalidArgumentError(f"no task {task} in {federation.file}: {', '.join(federation.tasks)}")
    return folder


def run_of(folder: Path, task: str) -> tuple[int, bool]:
    """The process of the run with a state folder, 0 if none is alive; and whether it moves a task."""
    from isthmus.supervisor.status import read_status

    document = read_status(folder)
    if document is None or not document["alive"]:
        return 0, False
    return int(document["process"]), any(route.get("task") == task for route in document["routes"])


def print_json(folder: Path, file: str, task: str, *, is_paused: bool, has_changed: bool) -> None:
    """Print the state of a task as one JSON object; `followed` says whether a run is alive that moves it."""
    process, moves = run_of(folder, task)
    answer = {"file": file, "task": task, "paused": is_paused, "changed": has_changed}
    print(json.dumps({**answer, "process": process or None, "followed": moves}))


def _print_change(folder: Path, task: str, what: str) -> None:
    process, moves = run_of(folder, task)
    if moves:
        print(f"{what}; the run by process {process} follows within a second")
    elif process:
        print(f"{what}; the run by process {process} does not move it, and one of another --state does not follow")
    else:
        print(f"{what}; no run is alive in {folder}, and one that starts there leaves it paused")
