"""The `isthmus` command.

What it is: the frame around the verbs. `VERBS` names the module of each; it has `register(app: typer.Typer) -> None`. Only the module of
the requested verb is imported, since a few of them need a second to import.

Exit codes: 0 done, 1 failed (also an unreachable namespace), 2 bad input (a wrong option, a file with faults), 130 interrupted.

Invariants:
    I1. An `IsthmusError` ends as its text on standard error, without a traceback; with `--json` in the arguments also
        as one JSON object `{"error": …}` on standard output.
    I2. Bad input ends with exit code 2.
    I3. Characters that the output cannot encode are written as escapes.
    I4. An output that cannot be written, e.g. to a full disk, ends with exit code 1, except the result of verbs that would send messages a second time,
        or switch a pair back, when they are repeated (`isthmus.cli.message.result`).
"""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import isthmus
from isthmus.cli.completion import COMPLETE_VARIABLE, completed_verb
from isthmus.errors import ConfigError, InvalidArgumentError, IsthmusError

__all__ = ["VERBS", "create_app", "main"]

BAD_INPUT = (ConfigError, InvalidArgumentError)
# Errors by code: their modules are not loaded for every verb. A connection string, or a reference to one, is the caller's input.
_BAD_REFERENCE = ("secret", "bad-connection-string")
# Of a write to a full disk, most often of the output: files of isthmus's own have errors of their own.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
VERBS = {
    # A federation file, and the entities that it needs.
    "init": "federation.init",
    "lint": "federation.lint",
    "schema": "federation.schema",
    "plan": "federation.plan",
    "apply": "federation.apply",
    "remove": "federation.remove",
    "doctor": "federation.doctor",
    # A run, and what it moved.
    "run": "supervision.run",
    "status": "supervision.status",
    "verify": "supervision.verify",
    "pause": "supervision.pause",
    "resume": "supervision.resume",
    "redrive": "supervision.redrive",
    "replay": "supervision.replay",
    "drill": "supervision.drill",
    "pair": "pair",
    # Messages of one entity.
    "send": "message.send",
    "receive": "message.receive",
    "peek": "message.peek",
    "purge": "message.purge",
    "resubmit": "message.resubmit",
    "export": "message.export",
    "import": "message.import_",
    "outbox": "outbox",
    # One namespace.
    "namespace": "namespace.serve",
    "entity": "namespace.entity",
    "rules": "rules",
    # isthmus itself.
    "demo": "demo",
    "bench": "bench",
    "prepare": "supervision.prepare",
    "completion": "completion",
}
"""The module of each verb, below `isthmus.cli`, in the order of the help."""


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
        verb: import only this verb's module; None, or a name that is not a verb, imports all.
        completes: answer a shell's request for words (`isthmus completion`).
    """
    app = typer.Typer(name="isthmus", no_args_is_help=True, add_completion=completes, pretty_exceptions_enable=False)
    app.callback()(_options)
    for name in [verb] if verb in VERBS else VERBS:
        importlib.import_module(f"isthmus.cli.{VERBS[name]}").register(app)
    return app


def exit_code(error: IsthmusError) -> int:
    """The exit code: 2 for a mistake of the caller, 1 for a failure."""
    is_bad_input = isinstance(error, BAD_INPUT) or error.code in _BAD_REFERENCE
    return 2 if is_bad_input and not error.retryable else 1


def _end(error: IsthmusError, words: Sequence[str]) -> NoReturn:
    notes = getattr(error, "__notes__", ())  # the position, e.g. the message of a file
    print("; ".join([f"isthmus: {error}", *notes]), file=sys.stderr)
    if "--json" in words:
        answer = error.to_dict()
        print(json.dumps({"error": {**answer, "message": "; ".join([answer["message"], *notes])}}))
    sys.exit(exit_code(error))


def _is_text(word: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in word)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its exit code.

    Args:
        arguments: the words after the program's name; by default those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal cannot show must not end a verb
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            _run(words)
        finally:
            _flush()  # here a failure can be reported
    except BrokenPipeError:
        # The reader of the output has ended (`isthmus … | head`).
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_output()
        print(f"isthmus: a write was refused: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _run(words: Sequence[str]) -> None:
    verb = next((word for word in words if not word.startswith("-")), None)
    completes = COMPLETE_VARIABLE in os.environ
    if completes:
        verb = completed_verb()
    try:
        create_app(verb, completes=completes)(args=words, prog_name="isthmus")
    except IsthmusError as error:
        _end(error, words)
    except UnicodeEncodeError as error:
        # Bytes of an argument that are not UTF-8 arrive as lone surrogates, which cannot be sent.
        wrong = next((word for word in words if not _is_text(word)), None)
        if wrong is None:
            raise
        _end(InvalidArgumentError(f"{wrong!a} is not UTF-8 text: {error.reason}"), words)
    except KeyboardInterrupt:
        sys.exit(130)


def _flush() -> None:
    if sys.stdout is not None:  # None if the parent process has closed it
        sys.stdout.flush()


def _discard_output() -> None:
    """Discards unwritten output; Python would report it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
