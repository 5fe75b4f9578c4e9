"""The `isthmus` command.

What it is: the frame around the verbs. A verb is a module of this package named like it (`lint.py` is `isthmus lint`)
that has `register(app: typer.Typer) -> None`; only the module of the verb that was asked for is imported, since a few of
them need a second to import. A verb that is a word of Python has a module with an underscore behind its name (`import_`). A module
whose name begins with an underscore holds a part of verbs. It has no verb of its own.

Exit codes: 0 done, 1 failed (also a namespace that is away), 2 bad input (a wrong option, a file with faults), 130 interrupted.

Invariants:
    I1. An `IsthmusError` ends as its text on standard error, without a traceback; with `--json` in the arguments also
        as one JSON object `{"error": …}` on standard output.
    I2. Bad input ends with exit code 2.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import isthmus
import isthmus.cli
from isthmus.cli.completion import COMPLETE_VARIABLE, completed_verb
from isthmus.errors import ConfigError, InvalidArgumentError, IsthmusError

__all__ = ["create_app", "main", "verbs"]

BAD_INPUT = (ConfigError, InvalidArgumentError)
_NO_VERBS = {"app", "hang_up"}


def verbs() -> list[str]:
    """The names of the verb modules that are installed, in alphabetical order."""
    return list(_modules())


def _modules() -> dict[str, str]:
    """The module of each verb."""
    names = sorted(module.name for module in pkgutil.iter_modules(isthmus.cli.__path__))
    return {name.rstrip("_"): name for name in names if name not in _NO_VERBS and not name.startswith("_")}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"isthmus {isthmus.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federates message queues and topics across regions."""


def create_app(verb: str | None = None, *, completes: bool = False) -> typer.Typer:
    """Build the command line application.

    Args:
        verb: import only this verb's module; None, or a name that is no verb, imports all.
        completes: answer a shell that asks for words (`isthmus completion`).
    """
    app = typer.Typer(name="isthmus", no_args_is_help=True, add_completion=completes, pretty_exceptions_enable=False)
    app.callback()(_options)
    modules = _modules()
    for name in [verb] if verb in modules else modules:
        register = getattr(importlib.import_module(f"isthmus.cli.{modules[name]}"), "register", None)
        if register is not None:
            register(app)
    return app


def exit_code(error: IsthmusError) -> int:
    """The exit code: 2 for a mistake of the caller, 1 for a failure."""
    return 2 if isinstance(error, BAD_INPUT) and not error.retryable else 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its exit code.

    Args:
        arguments: the words after the program's name; by default those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if not word.startswith("-")), None)
    completes = COMPLETE_VARIABLE in os.environ
    if completes:
        verb = completed_verb()
    try:
        create_app(verb, completes=completes)(args=words, prog_name="isthmus")
    except IsthmusError as error:
        notes = getattr(error, "__notes__", ())  # where it happened, e.g. at which message of a file
        print("; ".join([f"isthmus: {error}", *notes]), file=sys.stderr)
        if "--json" in words:
            told = error.to_dict()
            print(json.dumps({"error": {**told, "message": "; ".join([told["message"], *notes])}}))
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of the output has ended (`isthmus … | head`); without this Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
