"""Messages of an archive sent again.

What it is: the selection of rows (a window of time, a session, a SQL filter), and their sending in the order of their source, with
all their types. docs/how-to/archive-messages.md. What it is not: exactly once: a replay that was killed is repeated with its
name, and a target that detects duplicates drops those it has.

Each sent message has the application property `isthmus-replay`, the name of the replay and the message's position at its source. The properties
of routes are removed: it is a new message.

Invariants:
    I1. A row whose digest does not match is not sent; it is counted, and reported.
    I2. New ids are the same each time that a replay of one name sends a message.
    I3. A message that the target refuses ends the replay; the number sent before it is reported.
    I4. Messages in the spool that are not in the table are not sent; `outside` counts them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isthmus.connectors.servicebus.spark.row import UNREADABLE_BODY
from isthmus.connectors.spool.backlog import spool_backlog
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.row import restore
from isthmus.entities.record.amend import with_message_id, with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.message.name import OWN_PROPERTIES, RULE_NAME
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.operations.message import make_choice, sent_again
from isthmus.operations.peek import Progress
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.archive.peek import rows_of
from isthmus.replication.archive.query import archive_columns
from isthmus.transport import Client, Sender

__all__ = ["MARK", "Replay", "Replayed", "chosen", "outside", "parse_moment", "replay", "replayed_message"]

MARK = "isthmus-replay"
_AT_ONCE = 100
_SPACE = uuid.UUID("5b0d2c34-5b35-4f0e-9b1c-0d1a6a7d9e11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The selection and the options.

    Attributes:
        name: of the replay; part of marks and new ids.
        after: the earliest enqueued time; None for no limit.
        before: the first enqueued time that is not sent any more; None for no limit.
        session: this session only; None: all.
        where: a SQL filter in the rules language; empty: all.
        count: at most so many; 0: all.
        keeps_ids: whether messages keep their MessageIds.
    """

    name: str
    after: datetime | None = None
    before: datetime | None = None
    session: str | None = None
    where: str = ""
    count: int = 0
    keeps_ids: bool = False


@dataclass(slots=True)
class Replayed:
    """The result.

    Attributes:
        chosen: selected messages.
        sent: acknowledged by the target.
        damaged: selected rows whose digest does not match.
        first_damage: the first of them; empty if there is none.
        is_cut: whether it was stopped before all rows were read and sent.
    """

    chosen: int = 0
    sent: int = 0
    damaged: int = 0
    first_damage: str = ""
    is_cut: bool = False


def chosen(
    table: Path, wanted: Replay, found: Replayed, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """The selected rows, with their messages, in the order of the source.

    Args:
        table: the archive's folder.
        wanted: the selection.
        found: counts them.
        is_stopped: called at each row; reading ends when it returns true.

    Raises:
        InvalidArgumentError: there is no archive, or the filter compares a time with a text that is not a time.
        RuleSyntaxError: the filter is wrong.
    """
    if not (table / "_isthmus" / "archive.json").exists():
        raise InvalidArgumentError(f"{table} is not an archive; name a task of pattern archive that has run")
    matches = make_choice(wanted.where)
    for row in rows_of(table, wanted.after, wanted.before):
        if is_stopped():
            found.is_cut = True
            return
        if not _is_meant(row, wanted):
            continue
        try:
            message = restore(row)
        except ValueError as error:
            found.damaged += 1
            found.first_damage = found.first_damage or str(error)
            continue
        if wanted.where and (row["body_type"] == UNREADABLE_BODY or not matches(message)):
            continue
        found.chosen += 1
        yield row, message
        if found.chosen == wanted.count:
            return


def outside(table: Path, spool: Path) -> int:
    """How many messages an archive has received that are in its spool and not in the table yet; call it before `chosen`.

    Args:
        table: the archive's folder.
        spool: the folder of its spool.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    taken = ArchiveFolder(table, archive_columns()).watermark(SpoolFolder(spool).identity())
    return spool_backlog(spool, taken).messages


def replay(
    client: Client,
    path: str,
    table: Path,
    wanted: Replay,
    *,
    on_progress: Progress = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Send the selected messages.

    Args:
        client: connected, authorised for `path`.
        path: queue or topic. The caller has checked with `operations.detection` whether messages may keep their MessageIds.
        table: the archive's folder.
        wanted: the selection and the options.
        on_progress: called with the number of messages accepted since the last call.
        is_stopped: called repeatedly; once it returns true nothing more is sent, and messages in flight are waited for.

    Raises:
        IsthmusError: a message was refused, or the namespace is unreachable; its notes say how many were sent.
    """
    found = Replayed()
    sender = Sender(client, path).wait_ready()
    group: list[tuple[dict[str, Any], bytes]] = []

    def send() -> None:
        messages = [replayed_message(row, message, wanted) for row, message in group]
        try:
            results: Sequence[IsthmusError | None] = deliver(client, sender, messages)
        except UnconfirmedError as lost:
            results = lost.results
        found.sent += results.count(None)
        for (row, _), error in zip(group, results, strict=True):
            if error is not None:
                error.add_note(f"message {row['sequence_number']} of {row['source']}")
                raise error
        on_progress(len(group))
        group.clear()

    try:
        for each in chosen(table, wanted, found, is_stopped):
            group.append(each)
            if len(group) == _AT_ONCE:
                send()
        found.is_cut = found.is_cut or (bool(group) and is_stopped())
        if group and not found.is_cut:
            send()
    except IsthmusError as error:
        error.add_note(f"{found.sent} messages were sent; --name {wanted.name} gives them the same ids again")
        raise
    finally:
        sender.close()
    return found


def replayed_message(row: dict[str, Any], message: bytes, wanted: Replay) -> bytes:
    """The message as it is sent: without the additions of its broker and routes, and marked."""
    position = f"{row['source']}/{row['sequence_number']}"
    if row["body_type"] == UNREADABLE_BODY:
        return message
    parts = split(message, HeadCache(0))
    marked = with_properties(parts.rest, {MARK: f"{wanted.name} {position}"}, (*OWN_PROPERTIES, RULE_NAME))
    parts = parts._replace(rest=marked)
    if not wanted.keeps_ids:
        own = f"{wanted.name}\n{row['source_namespace']}\n{position}\n{row['sequence_epoch']}\n{row['spool']}\n{row['spool_number']}"
        parts = with_message_id(parts, str(uuid.uuid5(_SPACE, own)))
    return sent_again(parts)


def _is_meant(row: dict[str, Any], wanted: Replay) -> bool:
    moment = row["enqueued_time"] or row["received_time"]
    if wanted.after is not None and moment < wanted.after:
        return False
    if wanted.before is not None and moment >= wanted.before:
        return False
    return wanted.session is None or row["session_id"] == wanted.session


def parse_moment(option: str, text: str) -> datetime | None:
    """A time as an operator writes it, ISO 8601, UTC if it names no zone; None if it is empty.

    Raises:
        InvalidArgumentError: it is not a time.
    """
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"{option} {text}: write a time as 2026-11-23 or 2026-11-23T12:00:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
