"""The progress of an import: a small file beside the file of messages.

What it is: which messages of a file an entity has acknowledged, and the seed of the MessageIds that they were given.
What it is not: valid for an entity that was removed and created again, or of another namespace at the same address: its time of creation, and
the identity of the namespace, are part of the note.

Invariants:
    I1. A message is in the note only after it was acknowledged.
    I2. The note is on disk before the first message is sent, and after each group; after a kill at any instant, the old or the
        new note exists whole.
    I3. A note that cannot be read ends the import; it is never treated as missing.
    I4. The note of an interrupted import of the same file into another entity stays until that one is done.
    I5. A namespace that reports its identity is the same one at every address.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidArgumentError
from isthmus.operations.file.message_file import FileNotWrittenError
from isthmus.whole_file import write_file

__all__ = ["ProgressNote"]


class ProgressNote:
    """The note of one import.

    Args:
        file: the file of messages.
        export_id: from the file's header.
        target: namespace and entity.
        created_at: when the entity was created; empty if unknown.
        identity: of the namespace; its address if it reports none.
        is_reported: whether the namespace has reported the identity.

    Raises:
        InvalidArgumentError: there is a note that cannot be read.
    """

    def __init__(
        self,
        file: Path,
        export_id: str,
        target: str,
        created_at: str = "",
        identity: str = "",
        *,
        is_reported: bool = False,
    ) -> None:
        self._file = file.with_name(file.name + ".progress")
        self._known = {"export_id": export_id, "target": target}
        self._of = {"created_at": created_at, "identity": identity}
        # Every index before `_done` is acknowledged except those in `_missing`, which were refused.
        self._done = 0
        self._missing: set[int] = set()
        self._seed = uuid.uuid4()
        # The notes of interrupted imports of the same file into other entities.
        self._others: list[dict[str, Any]] = []
        found = self._read()
        for each in (found, *found.pop("others", ())):
            is_other_entity = any(
                recorded and each.get(name) and recorded != each[name] for name, recorded in self._of.items()
            )
            if each.get("export_id") != export_id:
                continue
            is_here = (
                is_reported and each.get("identity") == identity and _entity(each.get("target")) == _entity(target)
            )
            if each.get("target") != target and not is_here:
                self._others.append(each)
            elif not is_other_entity:
                self._take(each)

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unusable(getattr(error, "strerror", None) or "it is no JSON") from None
        if not isinstance(found, dict):
            raise self._unusable("it is no JSON object")
        others = found.get("others", [])
        if not isinstance(others, list) or not all(isinstance(each, dict) for each in others):
            raise self._unusable("a value in it is invalid")
        return found

    def _take(self, found: dict[str, Any]) -> None:
        try:
            self._done = int(found["done"])
            self._missing = {int(index) for index in found.get("refused", ())}
            self._seed = uuid.UUID(found["seed"]) if "seed" in found else self._seed
        except (KeyError, TypeError, ValueError, AttributeError):
            raise self._unusable("a value in it is invalid") from None

    def _unusable(self, reason: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"'{self._file}' records which messages were sent, and cannot be read: {reason}; "
            "repair it, or remove it to send all messages again"
        )

    @property
    def count(self) -> int:
        """How many messages are acknowledged."""
        return self._done - len(self._missing)

    def __contains__(self, index: int) -> bool:
        return index < self._done and index not in self._missing

    def message_id(self, index: int) -> str:
        """The MessageId given to the message at an index: the same whenever this import continues."""
        return uuid.uuid5(self._seed, str(index)).hex

    def add(self, indices: Sequence[int], *, before: int) -> None:
        """Messages at these indices were acknowledged, all others since the last call and before `before` refused.

        Raises:
            FileNotWrittenError: the note cannot be written.
        """
        self._missing.update(range(self._done, before))
        self._missing.difference_update(indices)
        self._done = max(self._done, before)
        self.write()

    def write(self) -> None:
        """Write the note to the disk.

        Raises:
            FileNotWrittenError: the folder or the disk refuses.
        """
        values = {
            **self._known,
            **self._of,
            "seed": str(self._seed),
            "done": self._done,
            "refused": sorted(self._missing),
        }
        self._replace([values, *self._others])

    def _replace(self, notes: Sequence[dict[str, Any]]) -> None:
        first, *others = notes
        values = {**first, "others": others} if others else first
        try:
            write_file(self._file, json.dumps(values).encode())
        except OSError as error:
            raise self._unwritten(error) from None

    def remove(self) -> None:
        """All is sent; the notes of imports into other entities stay.

        Raises:
            FileNotWrittenError: the note cannot be written.
        """
        if self._others:
            self._replace(self._others)
        else:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> FileNotWrittenError:
        return FileNotWrittenError(
            f"'{self._file}', which records the progress of the import, cannot be written: "
            f"{error.strerror or error}; free space, or copy the file of messages to a folder that can be written"
        )


def _entity(target: object) -> str:
    """The entity of a target, without its namespace."""
    return str(target).partition("/")[2]
