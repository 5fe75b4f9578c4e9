"""Messages to a file, and from a file into an entity.

What it is: export (a peek; with removal after the file is on disk) and import (sends in order, resumable). What it is
not: a copy of an entity's settings; those are in its configuration.

Invariants:
    I1. A message is removed only after a file that contains it is synced under its name.
    I2. Messages that import has recorded as done were acknowledged. Killed at any instant and run again, it sends every message of the
        file at least once, and at most those of one group again. A refusal sends none again, a lost connection only those whose answer
        did not arrive.
    I3. An imported message keeps its body, properties, application properties and annotations; the namespace gives it a
        new sequence number and time of enqueueing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from isthmus.entities.queue.run import RunSet
from isthmus.entities.record.amend import with_message_id
from isthmus.entities.record.parse import HeadCache, split
from isthmus.errors import IsthmusError
from isthmus.message.name import NAMESPACE_ID
from isthmus.operations.deliver import UnconfirmedError, deliver
from isthmus.operations.file.message_file import DamagedFileError, MessageReader, MessageWriter
from isthmus.operations.file.progress_note import ProgressNote
from isthmus.operations.message import STATES, sent_again, sequence_of, state_of
from isthmus.operations.peek import Census, Progress, messages
from isthmus.operations.removal.purge import Removal, remove
from isthmus.transport import Client, Sender

__all__ = ["Imported", "export", "import_file"]

_DEFERRED = STATES.index("deferred")
_GROUP = 500
_GROUP_BYTES = 8 << 20


def export(
    client: Client,
    path: str,
    file: Path,
    chosen: Callable[[bytes], bool],
    *,
    namespace: str,
    limit: int = 0,
    remove_after: bool = False,
    progress: Progress = lambda _: None,
    removing: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(lambda: False),
) -> tuple[int, Removal | None]:
    """Write messages to a file; returns how many, and the removal if one was requested.

    Args:
        client: connected.
        path: of a queue, subscription, dead-letter queue, or topic (scheduled messages).
        file: to write.
        chosen: whether a message is to be written.
        namespace: its name, for the file.
        limit: end after so many; 0 is all.
        remove_after: remove them once the file is on disk.
        progress: called with the number of messages written since the last call.
        removing: entered for the removal; returns whether to stop it.

    Raises:
        InvalidArgumentError: the file exists already.
        FileNotWrittenError: the disk refused; no message was removed.
        IsthmusError: the namespace refused or is unreachable; then there is no file, or a whole one and some messages not removed, as notes say.
    """
    meant = Census(RunSet(), RunSet(), RunSet())
    with MessageWriter(file, {"namespace": namespace, "entity": path}) as writer:
        for payload in islice(filter(chosen, messages(client, path)), limit or None):
            sequence, state = sequence_of(payload), state_of(payload)
            writer.write(payload, state)
            meant[state].add(sequence, sequence)
            progress(1)
        writer.finish()
    if not remove_after:
        return writer.count, None
    try:
        with removing() as is_stopped:
            return writer.count, remove(client, path, meant, is_stopped=is_stopped)
    except IsthmusError as error:
        error.add_note(f"'{file}' is written, with {writer.count} messages")
        raise


class Imported(NamedTuple):
    """The result.

    Attributes:
        accepted: acknowledged in this run.
        passed_over: acknowledged in an earlier run that was interrupted.
        deferred: part of `accepted`: were deferred, and are active now.
        complete: whether all messages of the file were acknowledged; a further import sends all of them again.
    """

    accepted: int
    passed_over: int
    deferred: int
    complete: bool = True


def import_file(
    client: Client,
    path: str,
    file: Path,
    *,
    namespace: str,
    created_at: str = "",
    new_message_ids: bool = False,
    progress: Progress = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Imported:
    """Send the messages of a file, in order.

    A note beside the file (`FILE.progress`) records where to continue an interrupted import; it is removed when all is sent.

    Args:
        client: connected, authorised for `path`.
        path: queue or topic. The caller has checked with `operations.detection` whether messages may keep their MessageIds.
        file: that `export` wrote.
        namespace: the target's name, for the note; a namespace that reports its identity is the same one under each of its names.
        created_at: when the entity was created; empty if unknown. The note of an import into an entity that
            was removed since does not count.
        new_message_ids: give each message a MessageId of its own. Messages that an interrupted import sends again have the same
            ids again, so that an entity that detects duplicates takes each message once.
        progress: called with the number of messages accepted since the last call.
        is_stopped: called repeatedly; once it returns true nothing more is sent, and messages in flight are waited for and recorded.

    Raises:
        DamagedFileError: the messages before the damage were sent.
        InvalidArgumentError: the note cannot be read; nothing was sent.
        FileInUseError: another process imports the file; nothing was sent.
        FileNotWrittenError: the note cannot be written; the next run sends messages since the last note again.
        IsthmusError: a message was refused, or the namespace is unreachable; run it again to continue.
    """
    with MessageReader(file) as reader:
        reader.lock()  # two processes with one note would each send the other's messages again
        target = f"{namespace}/{path}".lower()
        note = ProgressNote(
            file,
            str(reader.header.get("export_id")),
            target,
            created_at,
            client.namespace_id,
            is_reported=bool(client.peer_properties.get(NAMESPACE_ID)),
        )
        passed_over = note.count
        sender = Sender(client, path).wait_ready()
        note.write()
        accepted = deferred = 0
        group: list[tuple[int, int, bytes]] = []
        size = 0

        def send() -> None:
            nonlocal accepted, deferred, size
            try:
                results: Sequence[IsthmusError | None] = deliver(client, sender, [payload for _, _, payload in group])
            except UnconfirmedError as lost:
                results = lost.results  # accepted messages are recorded, and not sent again
            taken = [(index, state) for (index, state, _), error in zip(group, results, strict=True) if error is None]
            accepted += len(taken)
            deferred += sum(state == _DEFERRED for _, state in taken)
            note.add([index for index, _ in taken], before=group[-1][0] + 1)
            progress(len(taken))
            for (index, _, _), error in zip(group, results, strict=True):
                if error is not None:
                    error.add_note(f"message {index + 1} of '{file}'")
                    raise error
            group.clear()
            size = 0

        try:
            for index, (state, payload) in enumerate(reader):
                if is_stopped():
                    return Imported(accepted, passed_over, deferred, complete=False)
                if index in note:
                    continue
                parts = split(payload, HeadCache(0))
                if new_message_ids:
                    parts = with_message_id(parts, note.message_id(index))
                group.append((index, state, sent_again(parts)))
                size += len(payload)
                if len(group) == _GROUP or size > _GROUP_BYTES:
                    send()
            if group:
                send()
        except IsthmusError as error:
            if group and isinstance(error, DamagedFileError):  # the messages before the damage
                send()
            error.add_note(f"{accepted} messages were accepted before")
            raise
        note.remove()
        sender.close()
    return Imported(accepted, passed_over, deferred)
