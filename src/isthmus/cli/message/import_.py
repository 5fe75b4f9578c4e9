"""`isthmus import`: messages of a file, sent to an entity; also `isthmus namespace import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.interruption import SENDS, interruption
from isthmus.cli.message.result import print_result
from isthmus.cli.progress import progress
from isthmus.cli.where import (
    DEFAULT_FILE,
    JSON,
    KEEP_IDS,
    NEW_IDS,
    Alias,
    CaFile,
    Connection,
    Data,
    Federation,
    target_of,
)

__all__ = ["register", "run"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("import")(run)


def run(
    file: Annotated[Path, typer.Argument(help="A file that export wrote.")],
    entity: Annotated[str, typer.Argument(help="Queue or topic to send to.")],
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    new_message_ids: Annotated[bool, NEW_IDS] = False,
    keep_message_ids: Annotated[bool, KEEP_IDS] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Send the messages of a file, in order, with their properties and, by default, their ids.

    Interrupted, it continues at the same position when run again: every message is sent at least once. Ctrl-C ends it after pending answers, so that none
    is sent twice.
    """
    from isthmus.operations.detection import check_detection
    from isthmus.operations.file.carry import import_file

    target, path = target_of(connection, alias, federation, data, ca_file), entity.strip("/")
    detection = check_detection(
        target.read_entity, path, new_message_ids=new_message_ids, keep_message_ids=keep_message_ids
    )
    with (
        target.open(path) as client,
        interruption(SENDS) as is_stopped,
        progress("sending", quiet=as_json) as note,
    ):
        done = import_file(
            client, path, file,
            namespace=target.name, created_at=detection.created_at, new_message_ids=new_message_ids, progress=note,
            is_stopped=is_stopped,
        )  # fmt: skip
        # Interrupted while the last messages were under way, it has sent all, and there is no note: run again, it would send them again.
        is_interrupted = is_stopped() and not done.complete
    sure = new_message_ids or not detection.may_drop
    if as_json:
        sent = done.accepted if sure else None
        print_result(json.dumps({"file": str(file), "entity": path, "sent": sent, **done._asdict()}))
    else:
        more = f", {done.passed_over} were sent before" if done.passed_over else ""
        more += f", {done.deferred} were deferred and are active now" if done.deferred else ""
        more += "" if sure else "; how many of them were dropped as duplicates is unknown"
        more += "; interrupted: run it again to send the rest" if is_interrupted else ""
        print_result(f"{path}: {'sent' if sure else 'accepted'} {done.accepted} messages{more}")
    if is_interrupted:
        raise typer.Exit(130)
