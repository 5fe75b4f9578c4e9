"""`isthmus send`: messages from the command line, or from a file, to a queue or topic."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli.interruption import SENDS, interruption
from isthmus.cli.message.result import print_result
from isthmus.cli.progress import progress
from isthmus.cli.where import (
    DEFAULT_FILE,
    JSON,
    Alias,
    CaFile,
    Connection,
    Data,
    Entity,
    Federation,
    address_of,
    near_names,
)
from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["register"]

_AT_ONCE = 500
_AT_ONCE_BYTES = 8 << 20
_LEAST = -(1 << 63)
_DIGITS = 20


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("send")(run)


def run(
    entity: Entity,
    body: Annotated[str, typer.Argument(help="The body, as UTF-8 text; - reads standard input.")] = "",
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    file: Annotated[
        Path | None, typer.Option("--body-file", help="Read the body from this file, byte for byte.")
    ] = None,
    count: Annotated[int, typer.Option(help="Send so many, each with a MessageId of its own.", min=1)] = 1,
    message_id: Annotated[str, typer.Option(help="The MessageId; by default a new one for each message.")] = "",
    session_id: Annotated[str, typer.Option(help="The SessionId.")] = "",
    subject: Annotated[str, typer.Option(help="The Subject (Label).")] = "",
    correlation_id: Annotated[str, typer.Option(help="The CorrelationId.")] = "",
    content_type: Annotated[str, typer.Option(help="The ContentType, e.g. application/json.")] = "",
    time_to_live: Annotated[str, typer.Option(help="The TimeToLive, e.g. 10m; by default the entity's.")] = "",
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="An application property: a whole number, true, false or text. Repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Send a message, and report once the namespace has accepted it.

    A namespace that detects duplicates silently drops a message whose MessageId it has had.
    """
    from isthmus.operations.deliver import UnconfirmedError, deliver

    if body and file is not None:
        raise InvalidArgumentError("BODY and --body-file are two bodies; write only one of them")
    if message_id and count > 1:
        raise InvalidArgumentError("--message-id is of one message; omit it with --count")
    content = _body(body, file)
    own = dict(_property(each) for each in properties or ())
    settings = {
        "subject": subject or None,
        "correlation_id": correlation_id or None,
        "content_type": content_type or None,
        "group_id": session_id or None,
    }
    ids = [message_id or uuid.uuid4().hex for _ in range(count)]
    ttl_ms = _ttl(time_to_live)
    address, path = address_of(connection, alias, federation, data, ca_file), entity.strip("/")
    with (
        near_names(address, path),
        address.target().open(path) as client,
        progress("sending", count, quiet=as_json) as note,
    ):
        from isthmus.transport import Sender

        sender = Sender(client, path).wait_ready()
        accepted = 0
        try:
            with interruption(SENDS) as is_stopped:
                at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // (len(content) + 1)))
                for start in range(0, count, at_once):
                    if is_stopped():
                        break
                    part = ids[start : start + at_once]
                    messages = [_encode(content, each, settings, own, ttl_ms) for each in part]
                    try:
                        errors = deliver(client, sender, messages)
                    except UnconfirmedError as lost:
                        accepted += list(lost.results).count(None)
                        unknown = [each for each, error in zip(part, lost.results, strict=True) if error is lost]
                        if unsure := unknown[: max(0, lost.sent - (len(part) - len(unknown)))]:
                            lost.add_note(_unknown(unsure))
                        raise
                    accepted += errors.count(None)
                    for error in errors:
                        if error is not None:
                            raise error
                    note(len(part))
                is_interrupted = is_stopped() and accepted < count  # else there is nothing to be sent again
        except IsthmusError as error:
            if count > 1:  # sent again as a whole, those would be duplicates
                error.add_note(f"{accepted} of {count} messages were accepted")
            raise
    if as_json:
        print_result(json.dumps({"entity": path, "sent": accepted, "message_ids": ids[:accepted]}))
    elif count > 1 or not accepted:
        print_result(f"{path}: sent {accepted} messages" + (f" of {count}: interrupted" if accepted < count else ""))
    else:
        print_result(f"{path}: sent 1 message, MessageId {ids[0]}")
    if is_interrupted:
        raise typer.Exit(130)


def _unknown(ids: list[str]) -> str:
    """What to know of messages without an answer."""
    if len(ids) == 1:
        return f"it may have been accepted: sent again with --message-id {ids[0]}, it is dropped where duplicates are detected"
    return f"{len(ids)} messages may have been accepted or not"


def _encode(
    content: bytes, message_id: str, settings: dict[str, Any], own: dict[str, Any], ttl_ms: int | None
) -> bytes:
    from isthmus.amqp.section import Header, encode_message

    return encode_message(
        content,
        header=Header(durable=True, ttl_ms=ttl_ms),
        properties={"message_id": message_id, **settings},
        application_properties=own,
    )


def _body(text: str, file: Path | None) -> bytes:
    if file is not None:
        try:
            return file.read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"{file} cannot be read ({error.strerror})") from None
    if text != "-":
        return text.encode()
    if sys.stdin is None:
        raise InvalidArgumentError("standard input is closed, and - reads the body from there")
    return sys.stdin.buffer.read()


def _property(written: str) -> tuple[str, Any]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise InvalidArgumentError(f"{written!r} is not an application property; write NAME=VALUE")
    if value in {"true", "false"}:
        return name, value == "true"
    if not (value.isascii() and value.removeprefix("-").isdecimal()):
        return name, value
    number = int(value) if len(value) <= _DIGITS else _LEAST - 1
    if not _LEAST <= number <= -1 - _LEAST:
        raise InvalidArgumentError(f"application property {name}: {value[:_DIGITS]} is a number of more than 64 bits")
    return name, number


def _ttl(text: str) -> int | None:
    from isthmus.topology.file.duration import parse_ms

    if not text:
        return None
    try:
        return parse_ms(text)
    except ValueError:
        raise InvalidArgumentError(f"--time-to-live is a duration, e.g. 30s, 10m, 1h30m; {text!r} is not") from None
