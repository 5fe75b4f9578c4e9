"""Messages to a file, and from a file into an entity.

What it is: export (a look; with removal after the file is on disk) and import (sends in order, resumable). What it is
not: a copy of an entity's settings; those are in its configuration.

Invariants:
    I1. A message is removed only after a file that holds it is synced under its name.
    I2. What import has noted as done was acknowledged. Killed at any instant and run again, it sends every message of the
        file at least once, and at most those of one group again.
    I3. An imported message keeps its body, properties, application properties and annotations; the namespace gives it a
        new sequence number and time of enqueueing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from isthmus.entities.parse import HeadCache, split
from isthmus.entities.run import RunSet
from isthmus.errors import IsthmusError
from isthmus.operations.deliver import deliver
from isthmus.operations.look import Census, Progress, messages
from isthmus.operations.message import sent_again, sequence_of, state_of
from isthmus.operations.message_file import DamagedFileError, MessageReader, MessageWriter
from isthmus.operations.purge import Removal, remove
from isthmus.transport import Client, Sender

__all__ = ["Imported", "export", "import_file"]

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
) -> tuple[int, Removal | None]:
    """Write messages to a file; how many, and what was removed if that was asked for.

    Raises:
        InvalidArgumentError: the file is there already.
        IsthmusError: the peer refused or is gone; no file is left then, or a whole one and some messages not removed.
    """
    meant = Census(RunSet(), RunSet(), RunSet())
    with MessageWriter(file, {"namespace": namespace, "entity": path}) as writer:
        for payload in islice(filter(chosen, messages(client, path)), limit or None):
            sequence, state = sequence_of(payload), state_of(payload)
            writer.write(payload, state)
            meant[state].add(sequence, sequence)
            progress(1)
        writer.finish()
    return writer.count, remove(client, path, meant) if remove_after else None


class Imported(NamedTuple):
    """What was done.

    Attributes:
        sent: acknowledged in this run.
        passed_over: acknowledged in an earlier run that was interrupted.
        deferred: part of `sent`: were deferred, and are active now.
    """

    sent: int
    passed_over: int
    deferred: int


def import_file(
    client: Client, path: str, file: Path, *, namespace: str, progress: Progress = lambda _: None
) -> Imported:
    """Send the messages of a file, in order.

    A note beside the file (`FILE.progress`) tells an interrupted import where to go on; it goes when all is sent.

    Raises:
        DamagedFileError: what stands before the damage was sent.
        IsthmusError: a message was refused, or the peer is gone; run it again to go on.
    """
    with MessageReader(file) as reader:
        note = _Note(file, str(reader.header.get("export_id")), f"{namespace}/{path}".lower())
        sender = Sender(client, path).wait_ready()
        sent = deferred = 0
        group: list[bytes] = []
        size = 0

        def send() -> None:
            nonlocal sent, size
            results = deliver(client, sender, group)
            accepted = next((place for place, error in enumerate(results) if error is not None), len(results))
            sent += accepted
            note.write(note.begun_at + sent)
            progress(accepted)
            if accepted < len(results):
                raise _refusal(results[accepted], note.begun_at + sent + 1, file)
            group.clear()
            size = 0

        try:
            for place, (state, payload) in enumerate(reader):
                if place < note.begun_at:
                    continue
                group.append(sent_again(split(payload, HeadCache(0))))
                size += len(payload)
                deferred += state == 1
                if len(group) == _GROUP or size > _GROUP_BYTES:
                    send()
        except DamagedFileError:
            if group:
                send()
            raise
        if group:
            send()
        note.remove()
        sender.close()
    return Imported(sent, note.begun_at, deferred)


class _Note:
    """How far an import has come."""

    def __init__(self, file: Path, export_id: str, target: str) -> None:
        self._file = file.with_name(file.name + ".progress")
        self._known = {"export_id": export_id, "target": target}
        self.begun_at = 0
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if {name: found.get(name) for name in self._known} == self._known:
            self.begun_at = int(found["done"])

    def write(self, done: int) -> None:
        fresh = self._file.with_name(self._file.name + ".new")
        with fresh.open("w", encoding="utf-8") as out:
            json.dump({**self._known, "done": done}, out)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self._file)

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


def _refusal(error: IsthmusError | None, place: int, file: Path) -> IsthmusError:
    assert error is not None
    error.add_note(f"message {place} of '{file}'")
    return error
