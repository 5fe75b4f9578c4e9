"""`isthmus replay`: send messages of an archive again."""

from __future__ import annotations

import json
import uuid
from typing import Annotated

import typer

from isthmus.cli.candidate import tasks
from isthmus.cli.interruption import SENDS, interruption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("replay")(run)


def run(
    file: Annotated[str, typer.Argument(help="The federation file.")],
    task: Annotated[str, typer.Argument(help="A task of pattern archive.", autocompletion=tasks)],
    to: Annotated[str, typer.Argument(metavar="ALIAS/ENTITY", help="The queue or topic to send to, e.g. ewr/orders.")],
    after: Annotated[
        str, typer.Option("--from", help="Enqueued at this time or later, e.g. 2026-11-23T12:00:00Z.")
    ] = "",
    before: Annotated[str, typer.Option("--until", help="Enqueued before this time.")] = "",
    session: Annotated[str | None, typer.Option(help="Of this session only.")] = None,
    where: Annotated[
        str, typer.Option(help="A SQL filter like those of subscriptions, e.g. \"carrier = 'UA' AND sys.Label = 'x'\".")
    ] = "",
    count: Annotated[int, typer.Option(help="At most so many, the oldest first; 0: all.", min=0)] = 0,
    keep_message_ids: Annotated[
        bool,
        typer.Option("--keep-message-ids", help="Send them with the MessageIds that they had; else they get new ones."),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            help="Names the replay in its messages. Repeated with the same name, messages get the same new ids again, and a target "
            "that detects duplicates drops those that it has."
        ),
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this only the count is shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Send messages of an archive again, in their order, with all their types.

    Each message has the application property `isthmus-replay`: the name of the replay, and the message's position at its source. Ctrl-C ends it after
    pending answers. Exit code 1 if a row of the archive is damaged, or a message was refused.
    """
    from pathlib import Path

    from isthmus.cli.message.result import print_note, print_result
    from isthmus.cli.progress import progress
    from isthmus.errors import InvalidArgumentError
    from isthmus.operations.replay import Replay, Replayed, chosen, outside, parse_moment, replay
    from isthmus.replication.namespace_clients import NamespaceClients
    from isthmus.topology.file.source import load
    from isthmus.topology.model import Endpoint
    from isthmus.topology.pattern.archive import ArchiveTask

    federation = load(file)
    declared = federation.tasks.get(task)
    if not isinstance(declared, ArchiveTask):
        archives = [each.name for each in federation.tasks.values() if isinstance(each, ArchiveTask)]
        raise InvalidArgumentError(
            f"{file} has no task {task} of pattern archive; it has {', '.join(archives) or 'none'}"
        )
    alias, _, entity = to.partition("/")
    if alias not in federation.namespaces or not entity or not federation.namespaces[alias].is_service_bus:
        raise InvalidArgumentError(f"{to}: write ALIAS/ENTITY of a queue or topic, with an alias of {file}")
    wanted = Replay(
        name=name or uuid.uuid4().hex[:12],
        after=parse_moment("--from", after),
        before=parse_moment("--until", before),
        session=session,
        where=where,
        count=count,
        keeps_ids=keep_message_ids,
    )
    table = Path(declared.table)
    waiting = outside(table, Path(declared.spool))
    is_interrupted = False
    if keep_message_ids:
        _refuse_detection(federation.namespaces[alias], entity)
    if yes:
        if not name:  # before the first message: after a kill the name would be unknown
            typer.echo(f"if it is interrupted, run it again with --name {wanted.name}", err=True)
        with NamespaceClients(federation, "isthmus-replay") as clients:
            client = clients.open(Endpoint(alias, entity))
            try:
                with interruption(SENDS) as is_stopped, progress(f"sending to {to}", quiet=as_json) as note:
                    done = replay(client, entity, table, wanted, on_progress=note, is_stopped=is_stopped)
                    is_interrupted = is_stopped() and done.is_cut
            finally:
                client.close(1.0)
    else:
        done = Replayed()
        for _ in chosen(table, wanted, done):
            pass
    answer = {
        "chosen": done.chosen,
        "sent": done.sent,
        "damaged": done.damaged,
        "name": wanted.name,
        "dry_run": not yes,
    }
    answer |= {"outside": waiting}
    if as_json:
        show = print_result if yes else print
        show(json.dumps({"file": file, "task": task, "to": to, **answer, "first_damage": done.first_damage}))
    elif yes:
        more = f"; interrupted: --name {wanted.name} gives them the same ids again" if is_interrupted else ""
        print_result(f"{done.sent:,} messages were sent to {to}; name of the replay: {wanted.name}{more}")
    else:
        print(f"{done.chosen:,} messages would be sent to {to}; --yes sends them")
    if waiting and not as_json:
        print_note(
            f"{waiting:,} messages are in the spool and not in the table yet, and were not selected: `isthmus run` moves them there"
        )
    if done.damaged and not as_json:
        print_note(f"{done.damaged:,} rows are damaged and not sent, first: {done.first_damage}")
    if is_interrupted or done.damaged:
        raise typer.Exit(130 if is_interrupted else 1)


def _refuse_detection(namespace: object, entity: str) -> None:
    """Refuse a target that would drop messages because of their MessageIds."""
    from isthmus.errors import InvalidArgumentError
    from isthmus.operations.detection import find_detection
    from isthmus.operations.server.target import find_target
    from isthmus.topology.model import NamespaceRef

    assert isinstance(namespace, NamespaceRef)
    if namespace.connection is None:
        raise InvalidArgumentError(
            f"whether {namespace.alias}/{entity} detects duplicates cannot be queried without a connection string; omit --keep-message-ids"
        )
    found = find_detection(find_target(str(namespace.connection), namespace.ca_file).read_entity, entity)
    for detecting, window in found.detecting.items():
        raise InvalidArgumentError(
            f"{namespace.alias}/{detecting} detects duplicates: it would drop a message whose MessageId was received within {window}; omit "
            "--keep-message-ids"
        )
    for unknown, why in found.unknown.items():
        raise InvalidArgumentError(
            f"whether {namespace.alias}/{unknown} detects duplicates is unknown ({why}); omit --keep-message-ids"
        )
