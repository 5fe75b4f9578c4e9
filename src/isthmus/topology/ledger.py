"""The setting `ledger`: an account of every message that the routes of a task move.

What it is: the setting and its reading. What it is not: the account (`isthmus.connectors.ledger`, `isthmus.replication.ledger.ledger`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Setting, Spec

__all__ = ["LEDGER", "LedgerOptions", "read_ledger"]

LEDGER_SPEC = Spec(
    "ledger",
    "An account of every message that the task's routes move, in a table of Parquet files.",
    (
        Setting(
            name="path",
            kind=Kind.PATH,
            required=True,
            description="Folder of the table, beside the federation file where the path is relative. Several tasks may share one.",
            example="lake/ledger",
        ),
        Setting(
            name="bodies",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether the messages themselves are stored, too.",
            example="false",
        ),
    ),
)

LEDGER = Setting(
    name="ledger",
    kind=Kind.MAPPING,
    inner=LEDGER_SPEC,
    description="Records every message that the task's routes move, in a table of Parquet files: `path` is its folder, and "
    "`bodies: true` stores the messages, too.",
    example="{path: lake/ledger}",
)


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The ledger of a task.

    Attributes:
        path: its folder.
        bodies: whether messages are stored completely.
    """

    path: str
    bodies: bool = False

    def anchored(self, directory: Path) -> LedgerOptions:
        """The same with a relative path resolved against `directory`."""
        return replace(self, path=str(directory / self.path))


def read_ledger(node: Any, document: Document) -> LedgerOptions | None:
    """The ledger that a task declares; None if there is none, or it is faulty."""
    if node is None:
        return None
    values = document.settings(node, LEDGER_SPEC, "ledger")
    path = str(values["path"] or "")
    if "://" in path:
        hint = "write the path of a folder: renaming a file has to be one step, which object stores do not have"
        document.fault(values.at("path"), f"path: {path} is a URI", hint)
        return None
    return LedgerOptions(path, values["bodies"]) if path else None
