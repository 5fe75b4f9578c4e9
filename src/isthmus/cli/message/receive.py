"""`isthmus receive`: messages of an entity, printed and completed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from isthmus.cli.interruption import interruption
from isthmus.cli.message.json_line import json_line
from isthmus.cli.message.reader import hand_over
from isthmus.cli.where import (
    DEAD_LETTER,
    DEFAULT_FILE,
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
from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["register"]

_INTERRUPTED = "interrupted: printed messages are removed, and locked ones are released; Ctrl-C again ends immediately"


class _UnreadError(Exception):
    """It was interrupted while the program behind a pipe had a message still to read, or while a terminal paused or was closed."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("receive")(run)


def run(
    entity: Entity,
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    dead_letter: Annotated[bool, DEAD_LETTER] = False,
    limit: Annotated[int, typer.Option("--max", help="At most so many; 0: all.", min=0)] = 1,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the next message.", min=0.1)] = 10.0,
    session_id: Annotated[str, typer.Option(help="Receive from this session.")] = "",
    next_session: Annotated[bool, typer.Option("--next-session", help="Receive from the next free session.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line for each message.")] = False,
) -> None:
    """Receive messages, print them, and remove them from the entity.

    A message is removed once it was printed, and the program behind a pipe has read it; `isthmus peek` shows messages and removes none. Ctrl-C ends it
    after pending answers. Exit code 1 if none arrived.
    """
    from isthmus.operations.message import body_of, read
    from isthmus.operations.receive import receive

    if session_id and next_session:
        raise InvalidArgumentError("--session-id and --next-session each name a session; write only one of them")

    if sys.stdout is None:
        raise InvalidArgumentError("standard output is closed, and messages would be removed that nobody sees")

    is_terminal = sys.stdout.isatty()

    def hand_on(payload: bytes, meanwhile: Callable[[], bool]) -> None:
        is_read = hand_over(sys.stdout, shown(payload) + "\n", meanwhile)
        # What is written to a terminal that was closed is discarded.
        if (is_terminal and not sys.stdout.isatty()) or not is_read:
            raise _UnreadError

    def shown(payload: bytes) -> str:
        seen = read(payload)
        if as_json:
            return json_line({**seen.to_dict(), "body": body_of(payload)})
        known = {"MessageId": seen.message_id, "SessionId": seen.session_id, "Subject": seen.subject} | seen.others
        more = [f"{name} {value}" for name, value in known.items() if value]
        more += [f"{name} = {value}" for name, value in seen.properties.items()]
        more += [f"unreadable: {name}" for name in seen.unreadable]
        return f"{body_of(payload)}\n  " + ", ".join((f"sequence number {seen.sequence}", *more))

    address, path = (
        address_of(connection, alias, federation, data, ca_file),
        entity_path(entity, dead_letter=dead_letter),
    )
    in_session = bool(session_id) or next_session
    try:
        with (
            near_names(address, path),
            address.target().open(path) as client,
            interruption(_INTERRUPTED) as is_stopped,
        ):
            done = receive(
                client, path, limit, wait, hand_on,
                in_session=in_session, session_id=session_id or None, is_stopped=is_stopped,
            )  # fmt: skip
            is_interrupted = is_stopped()
    except IsthmusError as error:
        if not in_session and "requires sessions" in str(error):  # as in the service's text
            error.add_note("write --session-id ID or --next-session")
        raise
    except _UnreadError:
        print(f"{path}: 1 message is not removed: its reader has not read it", file=sys.stderr)
        raise typer.Exit(130) from None
    if done.left:
        print(f"{path}: {done.left} messages were printed and not removed: their locks had expired", file=sys.stderr)
    if is_interrupted:
        raise typer.Exit(130)
    if not done.completed and not as_json:
        print(f"{path}: no message arrived within {wait:g} s", file=sys.stderr)
    raise typer.Exit(0 if done.completed and not done.left else 1)
