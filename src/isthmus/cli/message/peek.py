"""`isthmus peek`: messages of an entity, with nothing locked or changed; also `isthmus namespace peek`."""

from __future__ import annotations

import contextlib
import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.message.json_line import json_line
from isthmus.cli.where import (
    DEAD_LETTER,
    DEFAULT_FILE,
    FILTER,
    Alias,
    CaFile,
    Connection,
    Data,
    Entity,
    Federation,
    address_of,
    entity_path,
    near_names,
)

if TYPE_CHECKING:
    from isthmus.operations.message import Seen

__all__ = ["register", "run"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("peek")(run)


def run(
    entity: Entity,
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    dead_letter: Annotated[bool, DEAD_LETTER] = False,
    from_sequence: Annotated[int, typer.Option(help="First sequence number.", min=0)] = 0,
    limit: Annotated[int, typer.Option("--max", help="Show at most so many; 0: all.", min=0)] = 20,
    condition: Annotated[str, FILTER] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line for each message.")] = False,
) -> None:
    """Show messages, with nothing locked or changed."""
    from rich.console import Console

    from isthmus.operations.message import make_choice, read
    from isthmus.operations.peek import PAGE, messages
    from isthmus.supervisor.fitting_table import FittingTable

    chosen = make_choice(condition)
    address, path = (
        address_of(connection, alias, federation, data, ca_file),
        entity_path(entity, dead_letter=dead_letter),
    )
    with near_names(address, path), address.target().open(path) as client:
        at_once = min(limit or PAGE, PAGE) if not condition else PAGE
        peeked = messages(client, path, from_sequence, at_once=at_once)
        found = map(read, islice(filter(chosen, peeked), limit or None))
        if as_json:
            for seen in found:
                print(json_line(seen.to_dict()))
            return
        table = FittingTable(
            ">sequence",
            "message id",
            "state",
            "enqueued",
            ">deliveries",
            ">bytes",
            "session",
            "subject",
            "reason" if dead_letter else "body",
            title=path,
        )
        for seen in found:
            answer = seen.to_dict()
            last = f"{seen.reason}: {seen.description}" if dead_letter else seen.body
            table.add_row(
                str(seen.sequence),
                seen.message_id,
                seen.state if seen.state != "active" else "",
                answer["enqueued_at"][:-6],
                str(seen.delivery_count) if seen.delivery_count else "",
                str(seen.size_bytes),
                seen.session_id,
                seen.subject,
                last,
                notes=_notes(seen),
            )
    Console(soft_wrap=True).print(table)
    if not table.row_count and not dead_letter:
        _hint(address, path)


def _notes(seen: Seen) -> tuple[str, ...]:
    """The lines below a message: its properties that have no column, and what cannot be read of it."""
    others = ", ".join(f"{name} {value}" for name, value in seen.others.items())
    return (*([others] if others else []), *([f"unreadable: {', '.join(seen.unreadable)}"] if seen.unreadable else []))


def _hint(address: Any, path: str) -> None:
    """Print where the messages of a topic are, if the key may read the kind of `path`."""
    from isthmus.connectors.servicebus.entity import Entities, EntityPath
    from isthmus.errors import IsthmusError

    with contextlib.suppress(IsthmusError), Entities(address.administration()) as namespace:
        names = namespace.show(EntityPath.parse(path)).get("subscriptions")
        if names:
            answer = ", ".join(str(EntityPath(path, name)) for name in names)
            print(f"{path} is a topic; its messages are in its subscriptions: {answer}", file=sys.stderr)
