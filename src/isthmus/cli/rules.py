"""`isthmus rules eval`: what a filter and an action do with one message."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from isthmus.errors import ConfigError, Fault
from isthmus.rules import Action, DictView, Filter, FilterError, RuleSyntaxError, parse_action, parse_filter
from isthmus.rules.document import parse_message, parse_value, show_message
from isthmus.rules.value import Value

__all__ = ["register"]

_VERDICTS = {True: "match", False: "no match", None: "unknown"}
_T = TypeVar("_T", Filter, Action)


def register(app: typer.Typer) -> None:
    """Adds `rules` and its verbs to the command line."""
    rules = typer.Typer(no_args_is_help=True, help="Try the SQL filters and actions of subscriptions.")
    rules.command("eval")(evaluate)
    rules.callback()(_options)
    app.add_typer(rules, name="rules")


def _options() -> None:
    """Try the SQL filters and actions of subscriptions."""


def evaluate(
    message: Annotated[
        str, typer.Option(help='JSON file, or - for standard input: {"sys": {"Label": …}, "user": {name: value}}')
    ],
    filter: Annotated[str, typer.Option(help="SQL filter, e.g. \"color = 'red'\".")],  # noqa: A002  # the option's name
    action: Annotated[str | None, typer.Option(help='SQL action, e.g. "SET seen = 1"; runs if the filter matches.')] = (
        None
    ),
    parameter: Annotated[list[str] | None, typer.Option(help="Value of @name, as name=JSON; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a filter's verdict on a message, and the message after the action.

    The verdict is "match", "no match" or "unknown"; only "match" selects. An evaluation that fails, e.g. by a division by
    zero, is "unknown" with an error. Exit code 2: an expression or the message is malformed.
    """
    parameters = _parameters(parameter or [])
    faults: list[Fault] = []
    selected = _parsed("--filter", parse_filter, filter, parameters, faults)
    changing = None if action is None else _parsed("--action", parse_action, action, parameters, faults)
    if faults or selected is None:
        raise RuleSyntaxError(faults, filter if faults[0].file == "--filter" else action or "")
    sys_properties, user_properties = _read(message)
    answer: dict[str, Any] = {}
    view = DictView(sys_properties, user_properties)
    try:
        answer["verdict"] = _VERDICTS[selected.matches(view)]
        if changing is not None and answer["verdict"] == "match":
            changing.apply(view).apply_to(sys_properties, user_properties)
    except FilterError as error:
        answer.setdefault("verdict", "unknown")
        answer["error"] = error.to_dict()
    answer["message"] = show_message(sys_properties, user_properties)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
        return
    print(answer["verdict"])
    if "error" in answer:
        print(f"error: {answer['error']['message']}")
    print(json.dumps(answer["message"], ensure_ascii=False, indent=2))


def _parsed(
    option: str,
    parse: Callable[[str, dict[str, Value]], _T],
    text: str,
    parameters: dict[str, Value],
    faults: list[Fault],
) -> _T | None:
    try:
        return parse(text, parameters)
    except RuleSyntaxError as error:
        faults += [replace(fault, file=option) for fault in error.faults]
        return None


def _parameters(words: list[str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    faults = []
    for word in words:
        name, _, text = word.partition("=")
        try:
            found[name] = parse_value(json.loads(text))
        except ValueError as error:
            hint = "write --parameter name=5 or --parameter 'name=\"text\"'"
            faults.append(Fault(f"--parameter {word}: {error}", hint))
    if faults:
        raise ConfigError(faults)
    return found


def _read(name: str) -> tuple[dict[str, Value], dict[str, Value]]:
    if name == "-":
        return parse_message(sys.stdin.read(), "standard input")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            [Fault(f"cannot read the message: {error}", "name a file, or - for standard input")]
        ) from None
    return parse_message(text, name)
