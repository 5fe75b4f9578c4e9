"""`isthmus resubmit`: send dead letters again; also `isthmus namespace resubmit`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from isthmus.cli.interruption import LEAVES_QUEUE, interruption
from isthmus.cli.progress import progress
from isthmus.cli.where import (
    DEFAULT_FILE,
    FILTER,
    JSON,
    KEEP_IDS,
    MAX,
    NEW_IDS,
    YES,
    Alias,
    CaFile,
    Connection,
    Data,
    Federation,
    entity_path,
    target_of,
)

__all__ = ["register", "run"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("resubmit")(run)


def run(
    entity: Annotated[str, typer.Argument(help="A queue or topic/Subscriptions/name; its dead letters are sent.")],
    connection: Connection = "",
    alias: Alias = "",
    federation: Federation = DEFAULT_FILE,
    data: Data = None,
    ca_file: CaFile = "",
    to: Annotated[
        str, typer.Option(help="Queue or topic to send to; by default the one in which they were dead-lettered.")
    ] = "",
    condition: Annotated[str, FILTER] = "",
    action: Annotated[str, typer.Option(help="A SQL action for the sent messages, e.g. \"SET retried = 'yes'\".")] = "",
    new_message_ids: Annotated[bool, NEW_IDS] = False,
    keep_message_ids: Annotated[bool, KEEP_IDS] = False,
    limit: Annotated[int, MAX] = 0,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Send dead letters again, to the queue or topic in which they were dead-lettered.

    Each leaves the dead-letter queue once its copy is acknowledged. Copies have no dead-letter reason and description.
    Messages that were dead-lettered in one subscription go to the whole topic; name a queue with --to for anything else. Exit code 1 if some
    were refused or locked.
    """
    from isthmus.operations.detection import check_detection
    from isthmus.operations.message import make_change, make_choice
    from isthmus.operations.peek import take_census
    from isthmus.operations.resubmit import DEAD_LETTER_SUFFIX, Resubmission, origin_of, resubmit

    chosen, change = make_choice(condition), make_change(action)
    target, path = target_of(connection, alias, federation, data, ca_file), entity_path(entity, dead_letter=True)
    destination = to or origin_of(path.removesuffix(DEAD_LETTER_SUFFIX))
    check_detection(target.read_entity, destination, new_message_ids=new_message_ids, keep_message_ids=keep_message_ids)
    done, is_interrupted = Resubmission(0, 0, 0, ""), False
    with target.open(path) as client:
        client.authorize(destination)
        with progress("counting", quiet=as_json) as note:
            found = take_census(client, path, chosen, limit=limit, progress=note)
        meant, deferred = found.active, found.deferred.count()
        count = meant.count()
        if yes and count:
            with interruption(LEAVES_QUEUE) as is_stopped, progress("sending", count, quiet=as_json) as note:
                done = resubmit(
                    client,
                    path,
                    destination,
                    meant,
                    change,
                    new_message_ids=new_message_ids,
                    progress=note,
                    is_stopped=is_stopped,
                )
                is_interrupted = is_stopped()
    if as_json:
        answer = {"from": path, "to": destination, "dry_run": not yes, "meant": count, "deferred": deferred}
        print(json.dumps({**answer, **done._asdict()}))
    elif yes:
        rest = "left: interrupted" if is_interrupted else "locked, or removed by others"
        print(f"{path}: sent {done.moved} messages to {destination}, {done.refused} refused, {done.left} {rest}")
        if done.first_refusal:
            print(f"first refusal: {done.first_refusal}", file=sys.stderr)
    else:
        print(f"{path}: {count} messages would be sent to {destination}; --yes sends them")
    if deferred and not as_json:
        print(
            f"{deferred} deferred ones stay: their receiver gets them by their sequence numbers",
            file=sys.stderr,
        )
    raise typer.Exit(130 if is_interrupted else 1 if done.refused or done.left else 0)
