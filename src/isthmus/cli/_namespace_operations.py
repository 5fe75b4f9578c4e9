"""`isthmus namespace stats|peek|purge|resubmit|export|import|backup`.

What it is: options, tables, progress. What it is not: what is done (`isthmus.operations`, `isthmus.broker.backup`).
Over 400 lines: each verb's options stand beside its output.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from isthmus.cli._progress import progress

__all__ = ["register_operations"]

_CONNECTION = typer.Option(
    "--connection", help="Where the connection string is: env:NAME, file:/path#key or keyvault:vault/name."
)
_CA_FILE = typer.Option(help="PEM file of the authority to trust; by default ISTHMUS_CA_FILE, else the system's.")
_ENTITY = typer.Argument(help="A queue, topic/Subscriptions/name, or a topic (scheduled messages).")
_DEAD_LETTER = typer.Option("--dead-letter", help="Its dead-letter queue instead.")
_FILTER = typer.Option("--filter", help="A SQL filter as subscriptions have them; without one all messages are meant.")
_JSON = typer.Option("--json", help="Print one JSON object.")
_YES = typer.Option("--yes", help="Do it; without this only the number of messages is told.")
_MAX = typer.Option("--max", help="At most so many; 0: all.", min=0)

_NEW_IDS = typer.Option("--new-message-ids", help="Give what is sent MessageIds of its own.")
_KEEP_IDS = typer.Option(
    "--keep-message-ids", help="Send though the target may drop messages as duplicates, or cannot be asked."
)

_Connection = Annotated[str, _CONNECTION]
_CaFile = Annotated[str, _CA_FILE]
_DEFAULT_CONNECTION = "env:ISTHMUS_CONNECTION"


def register_operations(namespace: typer.Typer) -> None:
    """Add the verbs."""
    for name, run in (
        ("stats", _stats),
        ("peek", _peek),
        ("purge", _purge),
        ("resubmit", _resubmit),
        ("export", _export),
        ("import", _import),
        ("backup", _backup),
    ):
        namespace.command(name)(run)


def _stats(
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    interval: Annotated[float, typer.Option(help="Seconds between two looks, for the rates.", min=0.1)] = 1.0,
    every: Annotated[bool, typer.Option("--all", help="Show entities that hold and do nothing, too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show counts, sizes, rates, locks, connections and the disk's times of a namespace of isthmus.

    The key needs Manage. With --watch and --json one object a line.
    """
    from rich.console import Console
    from rich.live import Live

    from isthmus.operations.statistics import ask_statistics, rates
    from isthmus.operations.target import find_target

    target = find_target(connection, ca_file)
    before = ask_statistics(target)

    def look() -> dict[str, Any]:
        nonlocal before
        time.sleep(interval)
        after = ask_statistics(target)
        found, before = rates(before, after), after
        return found

    if not watch:
        found = look()
        if as_json:
            print(json.dumps(found))
        else:
            Console(soft_wrap=True).print(_stats_table(found, every=every))
        return
    if as_json:
        while True:
            print(json.dumps(look()), flush=True)
    with Live(_stats_table(look(), every=every), console=Console(), refresh_per_second=4) as live:
        while True:
            live.update(_stats_table(look(), every=every))


_STATS_COLUMNS = (
    ("active", "active"), ("dead letters", "dead_letter"), ("scheduled", "scheduled"), ("deferred", "deferred"),
    ("transfer", "transfer"), ("locked", "locked"), ("bytes", "size_bytes"), ("in/s", "in_rate"), ("out/s", "out_rate"),
    ("settled/s", "settled_rate"), ("expired/s", "expired_rate"), ("dead-lettered/s", "dead_lettered_rate"),
    ("refused/s", "refused_rate"),
)  # fmt: skip


def _stats_table(found: dict[str, Any], *, every: bool) -> Any:
    from rich.table import Table

    whole = found["namespace"]
    groups = max(1, whole["commits"])
    title = (
        f"{whole['name']}: {'healthy' if whole['healthy'] else 'the disk fails'}, up {whole['uptime_seconds']:.0f} s, "
        f"{whole['entities']} entities, {whole['connections']} connections, {whole['links']} links, "
        f"{whole['resident_bytes'] / 2**20:.0f} MiB resident, {whole['store_bytes'] / 2**20:.0f} MiB stored, "
        f"{whole['commit_operations'] / groups:.1f} operations and {1000 * whole['commit_seconds'] / groups:.1f} ms a commit"
    )
    table = Table(title=title)
    table.add_column("entity", overflow="fold")
    for heading, _ in _STATS_COLUMNS:
        table.add_column(heading, justify="right")
    for row in found["entities"]:
        values = [row[name] for _, name in _STATS_COLUMNS]
        if every or any(values):
            table.add_row(row["entity"], *(f"{value:.0f}" for value in values))
    return table


def _peek(
    entity: Annotated[str, _ENTITY],
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    dead_letter: Annotated[bool, _DEAD_LETTER] = False,
    from_sequence: Annotated[int, typer.Option(help="First sequence number.", min=0)] = 0,
    limit: Annotated[int, typer.Option("--max", help="Show at most so many; 0: all.", min=0)] = 20,
    condition: Annotated[str, _FILTER] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line for each message.")] = False,
) -> None:
    """Show messages, with nothing locked or changed."""
    from rich.console import Console
    from rich.table import Table

    from isthmus.operations.look import messages
    from isthmus.operations.message import make_choice, read
    from isthmus.operations.target import find_target

    chosen = make_choice(condition)
    target, path = find_target(connection, ca_file), _path(entity, dead_letter=dead_letter)
    with target.open(path) as client:
        found = map(read, islice(filter(chosen, messages(client, path, from_sequence)), limit or None))
        if as_json:
            for seen in found:
                print(json.dumps(seen.to_dict(), ensure_ascii=False))
            return
        table = Table(title=path)
        for heading in ("sequence", "state", "enqueued", "deliveries", "bytes", "message id", "session", "subject"):
            table.add_column(heading, justify="right" if heading in {"sequence", "deliveries", "bytes"} else "left")
        table.add_column("why dead" if dead_letter else "body", overflow="fold")
        for seen in found:
            told = seen.to_dict()
            last = f"{seen.reason}: {seen.description}" if dead_letter else seen.body
            cells = (seen.sequence, seen.state, told["enqueued_at"][:-6], seen.delivery_count, seen.size_bytes)
            table.add_row(*(_cell(each) for each in (*cells, seen.message_id, seen.session_id, seen.subject, last)))
    Console(soft_wrap=True).print(table)


def _purge(
    entity: Annotated[str, _ENTITY],
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    dead_letter: Annotated[bool, _DEAD_LETTER] = False,
    condition: Annotated[str, _FILTER] = "",
    limit: Annotated[int, _MAX] = 0,
    yes: Annotated[bool, _YES] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Remove messages: active, deferred and scheduled ones that stand now.

    Exit code 1 if some could not be removed, since a receiver has them locked.
    """
    from isthmus.operations.look import take_census
    from isthmus.operations.message import make_choice
    from isthmus.operations.purge import Removal, remove
    from isthmus.operations.target import find_target

    chosen = make_choice(condition)
    target, path = find_target(connection, ca_file), _path(entity, dead_letter=dead_letter)
    with target.open(path) as client:
        with progress("looking", quiet=as_json) as note:
            meant = take_census(client, path, chosen, limit=limit, progress=note)
        counts, total = meant.counts(), meant.total
        done = Removal(0, 0)
        if yes and total:
            with progress("removing", total, quiet=as_json) as note:
                done = remove(client, path, meant, progress=note)
    if as_json:
        print(json.dumps({"entity": path, "dry_run": not yes, "meant": counts, **done._asdict()}))
    elif yes:
        print(f"{path}: removed {done.removed} messages" + (f", {done.left} are locked or gone" if done.left else ""))
    else:
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        print(f"{path}: {total} messages would be removed ({told}); --yes removes them")
    raise typer.Exit(1 if done.left else 0)


def _resubmit(
    entity: Annotated[str, typer.Argument(help="A queue or topic/Subscriptions/name; its dead letters are meant.")],
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    to: Annotated[str, typer.Option(help="Queue or topic to send to; by default the one they died in.")] = "",
    condition: Annotated[str, _FILTER] = "",
    action: Annotated[str, typer.Option(help="A SQL action for what is sent, e.g. \"SET retried = 'yes'\".")] = "",
    new_message_ids: Annotated[bool, _NEW_IDS] = False,
    keep_message_ids: Annotated[bool, _KEEP_IDS] = False,
    limit: Annotated[int, _MAX] = 0,
    yes: Annotated[bool, _YES] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Send dead letters again, to the queue or topic that they died in.

    Each leaves the dead-letter queue once its copy is acknowledged. Copies lose reason and description of their death.
    What died in one subscription goes to the whole topic; name a queue with --to for anything else. Exit code 1 if some
    were refused or locked.
    """
    from isthmus.operations.detection import check_detection
    from isthmus.operations.look import take_census
    from isthmus.operations.message import make_change, make_choice
    from isthmus.operations.resubmit import DEAD_LETTER_SUFFIX, Resubmission, origin_of, resubmit
    from isthmus.operations.target import find_target

    chosen, change = make_choice(condition), make_change(action)
    target, path = find_target(connection, ca_file), _path(entity, dead_letter=True)
    destination = to or origin_of(path.removesuffix(DEAD_LETTER_SUFFIX))
    check_detection(target.read_entity, destination, new_message_ids=new_message_ids, keep_message_ids=keep_message_ids)
    done = Resubmission(0, 0, 0, "")
    with target.open(path) as client:
        client.authorize(destination)
        with progress("looking", quiet=as_json) as note:
            meant = take_census(client, path, chosen, limit=limit, progress=note).active
        count = meant.count()
        if yes and count:
            with progress("sending", count, quiet=as_json) as note:
                done = resubmit(
                    client, path, destination, meant, change, new_message_ids=new_message_ids, progress=note
                )
    if as_json:
        print(json.dumps({"from": path, "to": destination, "dry_run": not yes, "meant": count, **done._asdict()}))
    elif yes:
        print(
            f"{path}: sent {done.moved} messages to {destination}, {done.refused} refused, {done.left} locked or gone"
        )
        if done.first_refusal:
            print(f"first refusal: {done.first_refusal}", file=sys.stderr)
    else:
        print(f"{path}: {count} messages would be sent to {destination}; --yes sends them")
    raise typer.Exit(1 if done.refused or done.left else 0)


def _export(
    entity: Annotated[str, _ENTITY],
    file: Annotated[Path, typer.Argument(help="File to write; must not be there.")],
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    dead_letter: Annotated[bool, _DEAD_LETTER] = False,
    condition: Annotated[str, _FILTER] = "",
    limit: Annotated[int, _MAX] = 0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove them, once the file is on disk.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Write messages to a file, every byte of them, in sequence order: active, deferred and scheduled ones."""
    from isthmus.operations.carry import export
    from isthmus.operations.message import make_choice
    from isthmus.operations.target import find_target

    chosen = make_choice(condition)
    target, path = find_target(connection, ca_file), _path(entity, dead_letter=dead_letter)
    with target.open(path) as client, progress("writing", quiet=as_json) as note:
        count, removal = export(
            client, path, file, chosen,
            namespace=target.name, limit=limit, remove_after=remove, progress=note,
        )  # fmt: skip
    left = removal.left if removal is not None else 0
    if as_json:
        done = removal._asdict() if removal is not None else {"removed": 0, "left": 0}
        print(json.dumps({"entity": path, "file": str(file), "written": count, **done}))
    else:
        print(f"{path}: wrote {count} messages to {file}" + (f", removed {removal.removed}" if removal else ""))
    raise typer.Exit(1 if left else 0)


def _import(
    file: Annotated[Path, typer.Argument(help="A file that export wrote.")],
    entity: Annotated[str, typer.Argument(help="Queue or topic to send to.")],
    connection: _Connection = _DEFAULT_CONNECTION,
    ca_file: _CaFile = "",
    new_message_ids: Annotated[bool, _NEW_IDS] = False,
    keep_message_ids: Annotated[bool, _KEEP_IDS] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Send the messages of a file, in order, with their properties and, if nothing else is asked for, their ids.

    Interrupted, it goes on where it was when run again: every message is sent at least once.
    """
    from isthmus.operations.carry import import_file
    from isthmus.operations.detection import check_detection
    from isthmus.operations.target import find_target

    target, path = find_target(connection, ca_file), entity.strip("/")
    detection = check_detection(
        target.read_entity, path, new_message_ids=new_message_ids, keep_message_ids=keep_message_ids
    )
    with target.open(path) as client, progress("sending", quiet=as_json) as note:
        done = import_file(
            client, path, file,
            namespace=target.name, created_at=detection.created_at, new_message_ids=new_message_ids, progress=note,
        )  # fmt: skip
    sure = new_message_ids or not detection.may_drop
    if as_json:
        sent = done.accepted if sure else None
        print(json.dumps({"file": str(file), "entity": path, "sent": sent, **done._asdict()}))
    else:
        more = f", {done.passed_over} were sent before" if done.passed_over else ""
        more += f", {done.deferred} were deferred and are active now" if done.deferred else ""
        more += "" if sure else "; how many of them were dropped as duplicates cannot be told"
        print(f"{path}: {'sent' if sure else 'accepted'} {done.accepted} messages{more}")


def _backup(
    folder: Annotated[Path, typer.Argument(help="Folder to make; becomes a data folder to serve from.")],
    data: Annotated[Path, typer.Option(help="Data folder of the namespace.")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Copy a namespace of this machine, running or stopped, to a folder.

    Everything acknowledged before the call is in it. To restore, serve from a copy of the folder.
    """
    from isthmus.operations.backup import back_up_anyhow

    began = time.monotonic()
    running = back_up_anyhow(data, folder)
    seconds = time.monotonic() - began
    if as_json:
        print(json.dumps({"folder": str(folder), "running": running, "seconds": round(seconds, 3)}))
    else:
        print(f"{data} is backed up to {folder}, {'while it runs' if running else 'stopped'}, in {seconds:.1f} s")


def _path(entity: str, *, dead_letter: bool) -> str:
    from isthmus.operations.resubmit import DEAD_LETTER_SUFFIX

    path = entity.strip("/")
    return path if not dead_letter or path.lower().endswith(DEAD_LETTER_SUFFIX.lower()) else path + DEAD_LETTER_SUFFIX


def _cell(value: Any) -> Any:
    from rich.text import Text

    return Text(str(value))
