"""What a step is to the rest of topology, and the settings that steps share.

What it is: the class that each kind of step derives from. What it is not: any step.
"""

from __future__ import annotations

import re
from typing import ClassVar

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.divert import DIVERT, DIVERT_TO

__all__ = ["StepKind", "check_field", "on_failure"]

_FIELD = re.compile(r"(property:.+|system:[A-Za-z]+|[^\s.:]+(\.[^\s.:]+)*)")


class StepKind:
    """One kind of step.

    Attributes:
        spec: its settings.
        short: the setting that a plain value stands for, as in `filter: "carrier = 'UA'"`; empty: it takes a mapping only.
        paths: its settings that are file paths.
        references: its settings that are references to secrets, or mappings of names to such.
        folders: its settings that are folders.
        changes: whether it changes messages.
        shuffles: whether it looks at several messages together: its routes read through a spool.
    """

    spec: ClassVar[Spec]
    short: ClassVar[str] = ""
    paths: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ()
    changes: ClassVar[bool] = True
    shuffles: ClassVar[bool] = False

    def check(self, values: Values, document: Document) -> None:
        """Fault what is wrong with the settings together, without looking at any file."""


def on_failure(default: str, what: str) -> tuple[Setting, Setting]:
    """What becomes of a message that a step does not pass on, and where it goes.

    Args:
        default: `dead-letter` or `drop`.
        what: which messages are meant, for the description.
    """
    choice = Setting(
        name="on_failure",
        kind=Kind.CHOICE,
        choices=("dead-letter", "drop", DIVERT),
        default=default,
        description=f"What becomes, at its source, of {what}. `dead-letter`: it is dead-lettered with the reason; `drop`: it is "
        "completed; `divert`: it is sent to `divert_to` as it was received, with the reason, and completed when that has acknowledged it.",
        example=default,
    )
    return choice, DIVERT_TO


def check_field(field: str, values: Values, name: str, document: Document) -> None:
    """Fault a field that is written wrongly."""
    if not _FIELD.fullmatch(field):
        document.fault(
            values.at(name),
            f"{field!r} is no field",
            "write a field of the JSON body such as origin.name, property:NAME, or system:MessageId",
        )
