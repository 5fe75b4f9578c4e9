"""`isthmus entity list|show|create|update|delete`: queues, topics, subscriptions and rules of a namespace.

What it is: options and output. What it is not: the requests to the namespace (`isthmus.connectors.servicebus.entity`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from isthmus.cli.candidate import entities as candidates
from isthmus.cli.where import DEFAULT_FILE, JSON, Alias, CaFile, Connection, Data, Federation, address_of, near_names
from isthmus.errors import InvalidArgumentError

__all__ = ["register"]

_PATH = typer.Argument(
    metavar="PATH",
    help="QUEUE, TOPIC, TOPIC/Subscriptions/NAME or TOPIC/Subscriptions/NAME/Rules/RULE.",
    autocompletion=candidates,
)
_SETTINGS = typer.Argument(metavar="SETTING=VALUE", help="E.g. lock_duration=1m max_delivery_count=5.")
_CONDITION = typer.Option("--filter", help="SQL filter of a rule, or of a subscription that is created.")
_ACTION = typer.Option("--action", help="SQL action of that rule.")
_COLUMNS = (
    ("active", "active"),
    ("dead letters", "dead_letters"),
    ("scheduled", "scheduled"),
    ("transfer", "transfer"),
    ("bytes", "size_bytes"),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    entity = typer.Typer(no_args_is_help=True, help="Queues, topics, subscriptions and rules of a namespace.")
    for name, run in (
        ("list", _list),
        ("show", _show),
        ("create", _create),
        ("update", _update),
        ("delete", _delete),
    ):
        entity.command(name)(run)
    app.add_typer(entity, name="entity")


def _list(
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List queues, topics and subscriptions with their counts. Columns that are 0 everywhere are omitted."""
    from rich.console import Console

    from isthmus.supervisor.fitting_table import FittingTable

    with _open(connection, alias, federation, data, ca_file) as namespace:
        rows = namespace.rows()
    if as_json:
        print(json.dumps({"entities": [row._asdict() for row in rows]}))
        return
    if not rows:
        print("The namespace has no entities.")
        return
    table = FittingTable("entity", "kind", *(f">{heading}" for heading, _ in _COLUMNS), "status")
    for row in rows:
        counts = [f"{getattr(row, name):,}" if getattr(row, name) else "" for _, name in _COLUMNS]
        table.add_row(row.path, row.kind, *counts, row.status if row.status != "Active" else "")
    Console(soft_wrap=True).print(table)


def _show(
    path: Annotated[str, _PATH],
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show settings, counts and rules of one entity."""
    from isthmus.connectors.servicebus.entity import EntityPath

    wanted = EntityPath.parse(path)
    with _open(connection, alias, federation, data, ca_file, wanted) as namespace:
        found = namespace.show(wanted)
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['kind']} {found['path']}")
    if found["kind"] == "rule":
        _print_rule(found, "  ")
    for name, value in found.get("settings", {}).items():
        print(f"  {name}: {value}")
    for name, value in found.get("counts", {}).items():
        if value:
            print(f"  {name.replace('_', ' ')}: {value:,}")
    for each in found.get("subscriptions", ()):
        print(f"  subscription {each}")
    for each in found.get("rules", ()):
        print(f"  rule {each['name']}")
        _print_rule(each, "    ")


def _create(
    path: Annotated[str, _PATH],
    settings: Annotated[list[str] | None, _SETTINGS] = None,
    topic: Annotated[bool, typer.Option("--topic", help="A topic; without this PATH without / names a queue.")] = False,
    condition: Annotated[str, _CONDITION] = "",
    action: Annotated[str, _ACTION] = "",
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Create a queue, a topic (--topic), a subscription or a rule.

    Settings have the names of the namespace's file; omitted ones have the namespace's default.
    """
    from isthmus.connectors.servicebus.entity import EntityPath
    from isthmus.connectors.servicebus.entity_setting import parse_settings

    wanted = EntityPath.parse(path)
    kind = "rule" if wanted.rule else "subscription" if wanted.subscription else "topic" if topic else "queue"
    if topic and wanted.subscription:
        raise InvalidArgumentError(f"{path!r} names a {kind}; omit --topic")
    if (condition or action) and kind in {"queue", "topic"}:
        raise InvalidArgumentError(f"a {kind} has no rules; --filter and --action are of subscriptions and rules")
    if settings and kind == "rule":
        raise InvalidArgumentError("a rule has no settings; write --filter and --action")
    _check_rule(condition, action)
    chosen = parse_settings(kind, settings or ()) if settings else {}
    with _open(connection, alias, federation, data, ca_file) as namespace:
        namespace.create(wanted, kind, chosen, condition=condition, action=action)
    _print_result(as_json, "created", kind, wanted)


def _update(
    path: Annotated[str, _PATH],
    settings: Annotated[list[str] | None, _SETTINGS] = None,
    condition: Annotated[str, _CONDITION] = "",
    action: Annotated[str | None, _ACTION] = None,
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Change settings of an entity, or filter and action of a rule; omitted ones stay unchanged."""
    from isthmus.connectors.servicebus.entity import EntityPath
    from isthmus.connectors.servicebus.entity_setting import parse_settings

    wanted = EntityPath.parse(path)
    if wanted.rule and settings:
        raise InvalidArgumentError("a rule has no settings; write --filter and --action")
    if not wanted.rule and (condition or action is not None):
        raise InvalidArgumentError(
            f"--filter and --action are of rules; write the rule's path, e.g. {wanted}/Rules/$Default"
        )
    if not settings and not condition and action is None:
        raise InvalidArgumentError("nothing is to be changed; write SETTING=VALUE, or --filter and --action of a rule")
    _check_rule(condition, action or "")
    with _open(connection, alias, federation, data, ca_file, wanted) as namespace:
        kind = namespace.kind(wanted)
        chosen = parse_settings(kind, settings or ()) if settings else {}
        namespace.update(wanted, chosen, condition=condition, action=action)
    _print_result(as_json, "updated", kind, wanted)


def _delete(
    path: Annotated[str, _PATH],
    yes: Annotated[bool, typer.Option("--yes", help="Delete it, with the messages in it.")] = False,
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete an entity or a rule. Without --yes it only reports how many messages would be deleted."""
    from isthmus.connectors.servicebus.entity import EntityPath

    wanted = EntityPath.parse(path)
    with _open(connection, alias, federation, data, ca_file, wanted) as namespace:
        kind, messages = namespace.kind(wanted), namespace.waiting(wanted)
        if yes:
            namespace.delete(wanted)
    if as_json:
        answer = {"path": str(wanted), "kind": kind, "messages": messages, "dry_run": not yes}
        print(json.dumps(answer))
    elif yes:
        print(f"{kind} {wanted}: deleted" + (f", with {messages:,} messages" if messages else ""))
    else:
        print(f"{kind} {wanted} would be deleted, with {messages:,} messages; --yes deletes it")


@contextmanager
def _open(connection: str, alias: str, federation: str, data: Any, ca_file: str, path: Any = "") -> Iterator[Any]:
    from isthmus.connectors.servicebus.entity import Entities

    address = address_of(connection, alias, federation, data, ca_file)
    with near_names(address, str(path)), Entities(address.administration()) as namespace:
        yield namespace


def _check_rule(condition: str, action: str) -> None:
    """Report the faults of a filter and an action with their columns, as `isthmus rules eval` does.

    Raises:
        RuleSyntaxError: there are faults.
    """
    from isthmus.rules import parse_action, parse_filter

    if condition:
        parse_filter(condition)
    if action:
        parse_action(action)


def _print_rule(rule: dict[str, Any], indent: str) -> None:
    print(f"{indent}filter: {rule['filter']}")
    if rule.get("action"):
        print(f"{indent}action: {rule['action']}")


def _print_result(as_json: bool, what: str, kind: str, path: Any) -> None:
    print(json.dumps({"path": str(path), "kind": kind, "done": what}) if as_json else f"{kind} {path}: {what}")
