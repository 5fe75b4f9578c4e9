"""`isthmus completion`: the script that makes a shell complete words of this command line."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

__all__ = ["COMPLETE_VARIABLE", "completed_verb", "register"]

COMPLETE_VARIABLE = "_ISTHMUS_COMPLETE"
"""The environment variable with which the script requests words."""

_SHELLS_BEFORE_WORDS = {"bash": "COMP_WORDS", "zsh": "_TYPER_COMPLETE_ARGS", "fish": "_TYPER_COMPLETE_ARGS"}


class _Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("completion")(run)


def run(shell: Annotated[_Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script that completes verbs, options, tasks, aliases and entities.

    bash: `eval "$(isthmus completion bash)"` in ~/.bashrc. zsh: the same with zsh, after compinit, in ~/.zshrc. fish:
    `isthmus completion fish > ~/.config/fish/completions/isthmus.fish`.
    """
    from typer._completion_shared import (
        get_completion_script,  # not public; the public function writes into the user's files
    )

    print(get_completion_script(prog_name="isthmus", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def completed_verb() -> str | None:
    """The verb whose words a shell requests; None if the verb itself is incomplete."""
    shell = os.environ.get(COMPLETE_VARIABLE, "").rpartition("_")[2]
    words = os.environ.get(_SHELLS_BEFORE_WORDS.get(shell, ""), "").split()[1:]
    # The last word is the incomplete one, unless the cursor is behind a blank; then any verb is complete.
    verbs = [word for word in words if not word.startswith("-")]
    is_behind = os.environ.get("COMP_CWORD", "").isdecimal() and int(os.environ["COMP_CWORD"]) > 1
    return verbs[0] if verbs and (len(verbs) > 1 or is_behind) else None
