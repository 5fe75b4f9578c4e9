"""`isthmus outbox status|peek|drain|export`: the folder of a `DurableSender`.

What it is: options and output. What it is not: the outbox (`isthmus.client.outbox`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.interruption import SENDS, interruption
from isthmus.errors import InvalidArgumentError, OperationTimeoutError

__all__ = ["register"]

_PATH = typer.Argument(help="The folder of the DurableSender.")
_JSON = typer.Option("--json", help="Print one JSON object.")
_CONNECTION = typer.Option("--connection", help="Reference to the connection string: env:NAME or file:/path#key.")
_ACTIVE = 0
_LOOK_SECONDS = 0.2


def register(app: typer.Typer) -> None:
    """Adds `outbox` and its verbs to the command line."""
    outbox = typer.Typer(no_args_is_help=True, help="Show the outbox of a DurableSender, deliver it, export it.")
    for name, run in (("status", _status), ("peek", _peek), ("drain", _drain), ("export", _export)):
        outbox.command(name)(run)
    app.add_typer(outbox, name="outbox")


def _status(path: Annotated[Path, _PATH], as_json: Annotated[bool, _JSON] = False) -> None:
    """Show how many messages wait, how long, whether a process delivers them, and how many were refused or damaged."""
    from isthmus.client.outbox.store import status

    _entity(path)
    found = status(path)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"waiting      {found.messages} messages, {found.bytes} bytes")
    print(f"oldest       {found.oldest_seconds:.0f} s")
    print(f"delivering   {'yes' if found.is_draining else 'no'}")
    print(f"streams      {found.streams}, of which {found.live} are being written")
    print(f"refused      {found.refused} messages")
    print(f"damaged      {found.damaged} files in {path / 'quarantine'}")


def _peek(
    path: Annotated[Path, _PATH],
    most: Annotated[int, typer.Option("--max", help="At most so many; 0: all.", min=0)] = 20,
    refused: Annotated[bool, typer.Option("--refused", help="Those that the namespace refused permanently.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show messages without removing them."""
    _entity(path)
    rows = list(islice(_rows(path, refused), most or None))
    if as_json:
        print(json.dumps({"messages": rows}, ensure_ascii=False))
        return
    for row in rows:
        answer = f"  {row['reason']}" if "reason" in row else f"  since {row['written_at']}"
        print(f"{row['message_id']}  {row['bytes']} bytes{answer}")


def _drain(
    path: Annotated[Path, _PATH],
    connection: Annotated[str, _CONNECTION] = "env:ISTHMUS_CONNECTION",
    timeout: Annotated[
        float, typer.Option(help="Seconds; after them the rest stays, with exit code 1.", min=0.1)
    ] = 60.0,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Deliver the waiting messages to the entity of the outbox.

    If another process delivers them already, this waits until none is left. Ctrl-C ends it in good order. Exit code 1 if messages still
    wait, were refused, or were in a damaged file.
    """
    from isthmus.client.endpoint import Endpoint, EndpointUnavailableError
    from isthmus.client.outbox.store import status
    from isthmus.client.send.durable_sender import DurableSender

    entity = _entity(path)
    with suppress(EndpointUnavailableError):  # it may be available later
        Endpoint.of(connection).resolve()
    before = status(path)
    with interruption(SENDS) as is_stopped:
        deadline = time.monotonic() + timeout
        with DurableSender(connection, entity, path) as sender:
            while (seconds := deadline - time.monotonic()) > 0 and not is_stopped():
                if sender.flush(min(_LOOK_SECONDS, seconds)):
                    if not status(path).messages:
                        break
                    time.sleep(min(_LOOK_SECONDS, seconds))  # another process delivers
            # Otherwise the next call would send a batch again that is under way over a slow network.
            sender.close(is_patient=True)
        is_interrupted = is_stopped()
    found, state = status(path), sender.statistics().drain  # with the attempt that was under way
    damaged = found.damaged - before.damaged
    answer: dict[str, Any] = {
        "waited": before.messages,
        "left": found.messages,
        "delivered": state.delivered,
        "refused": state.refused,
    }
    answer |= {"damaged": damaged}
    error: OperationTimeoutError | None = None
    if found.messages and not is_interrupted:
        why = f"the last attempt failed: {state.error}" if state.error else "give it more time with --timeout"
        error = OperationTimeoutError(f"{found.messages} messages still wait in {path}; {why}")
        answer |= {"error": error.to_dict()}
    print(
        json.dumps(answer)
        if as_json
        else f"{answer['delivered']} messages delivered, {answer['refused']} refused, {answer['left']} left"
    )
    refused = max(state.refused, found.refused - before.refused)  # also by another process that delivers
    if refused:
        print(f"{refused} messages were refused; isthmus outbox peek {path} --refused shows why", file=sys.stderr)
    if damaged:
        print(
            f"the messages in {damaged} damaged pieces are not sent; they are in {path / 'quarantine'}", file=sys.stderr
        )
    if is_interrupted:
        raise typer.Exit(130)
    if error is not None:
        print(f"isthmus: {error}", file=sys.stderr)
    if error is not None or refused or damaged:
        raise typer.Exit(1)


def _export(
    path: Annotated[Path, _PATH],
    file: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")],
    refused: Annotated[bool, typer.Option("--refused", help="Those that the namespace refused permanently.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Write messages to a file that `isthmus namespace import` reads. They stay in the outbox.

    Exit code 1 if there are damaged pieces, whose messages are not in the file.
    """
    from isthmus.operations.file.message_file import MessageWriter

    damaged: list[None] = []
    with MessageWriter(file, {"namespace": "outbox", "entity": _entity(path)}) as writer:
        for payload in _payloads(path, refused, lambda: damaged.append(None)):
            writer.write(payload, _ACTIVE)
        writer.finish()
        count = writer.count
    answer = {"messages": count, "damaged": len(damaged), "file": str(file)}
    print(json.dumps(answer) if as_json else f"{count} messages written to {file}")
    if damaged:
        print(f"{len(damaged)} pieces of {path} are damaged, and the messages in them are not written", file=sys.stderr)
        raise typer.Exit(1)


def _entity(path: Path) -> str:
    """The entity of an outbox.

    Raises:
        InvalidArgumentError: the folder is not an outbox.
    """
    from isthmus.client.outbox.store import entity_of

    entity = entity_of(path)
    if not entity:
        raise InvalidArgumentError(f"{path} is not an outbox; name the folder of a DurableSender")
    return entity


def _rows(path: Path, wants_refused: bool) -> Any:
    from isthmus.amqp import section
    from isthmus.amqp.codec import CodecError
    from isthmus.client.outbox.backlog import waiting
    from isthmus.client.outbox.folder import Folder
    from isthmus.client.outbox.store import refused

    _entity(path)
    folder = Folder(path)
    if wants_refused:
        found: Any = (({"reason": reason}, payload) for reason, payload in refused(folder))
    else:
        found = (
            ({"written_at": datetime.fromtimestamp(record.written_ms / 1000, UTC).isoformat()}, payload)
            for _, record, index in waiting(folder)
            for payload in record.payloads[index:]
        )
    for answer, payload in found:
        properties: dict[str, Any] = {}
        with suppress(CodecError):  # a body of the SDK that cannot be read
            properties = section.decode_properties(payload, section.locate(payload).properties)
        shown = {
            name: str(properties[name]) for name in ("subject", "group_id", "correlation_id") if name in properties
        }
        yield {"message_id": str(properties.get("message_id", "")), "bytes": len(payload), **shown, **answer}


def _payloads(path: Path, wants_refused: bool, on_damage: Callable[[], None]) -> Any:
    from isthmus.client.outbox.backlog import waiting
    from isthmus.client.outbox.folder import Folder
    from isthmus.client.outbox.store import refused

    folder = Folder(path)
    if wants_refused:
        return (payload for _, payload in refused(folder, on_damage))
    return (payload for _, record, index in waiting(folder, on_damage) for payload in record.payloads[index:])
