"""`isthmus namespace keys`: the shared keys of a namespace on this machine.

What it is: options and output. What it is not: the keys (`isthmus.broker.security.keyring`). A running namespace uses changed
keys within seconds.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


class _Which(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"


def register(namespace: typer.Typer) -> None:
    """Add the verb."""
    namespace.command("keys")(_keys)


def _keys(
    data: Annotated[Path, typer.Option(help="Folder of the namespace.")],
    rule: Annotated[str | None, typer.Option(help="One authorization rule; default: all.")] = None,
    regenerate: Annotated[
        _Which | None, typer.Option(help="Regenerate this key of the rule; the other one stays valid.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the keys themselves.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the namespace's authorization rules, or regenerate a key."""
    from dataclasses import replace

    from isthmus.broker.security.keyring import KEY_FILE, Keyring
    from isthmus.broker.security.rule import new_key
    from isthmus.clock import SystemClock
    from isthmus.errors import InvalidArgumentError

    file, clock = data / KEY_FILE, SystemClock()
    if not file.exists():
        raise InvalidArgumentError(f"'{data}' contains no namespace: there is no {KEY_FILE} in it")
    keyring = Keyring.open(file, clock)
    found = [each for each in keyring.rules if rule is None or each.key_name == rule]
    if not found or (regenerate is not None and rule is None):
        names = ", ".join(each.key_name for each in keyring.rules)
        raise InvalidArgumentError(f"name one rule with --rule; there are {names}")
    if regenerate is not None:
        changed = replace(found[0], modified_at_ms=clock.wall_ms())
        setattr(changed, f"{regenerate}_key", new_key())
        keyring.put(changed)
        keyring.save(file)
        found = [changed]
    described = [
        {
            "name": each.key_name,
            "rights": each.rights,
            **({"primary_key": each.primary_key, "secondary_key": each.secondary_key} if show else {}),
        }
        for each in found
    ]
    if json_output:
        print(json.dumps({"rules": described}))
        return
    for each in described:
        print("  ".join(str(value) if isinstance(value, str) else ",".join(value) for value in each.values()))
