"""The interface of a step to the rest of topology, and the settings that steps share.

What it is: the class that each kind of step derives from. What it is not: a step.
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
        short: the setting that a plain value sets, as in `filter: "carrier = 'UA'"`; empty: it accepts only a mapping.
        paths: its settings that are file paths.
        references: its settings that are references to secrets, or mappings of names to references.
        folders: its settings that are folders.
        changes: whether it changes messages.
        shuffles: whether it processes several messages together: its routes read through a spool.
    """

    spec: ClassVar[Spec]
    short: ClassVar[str] = ""
    paths: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ()
    changes: ClassVar[bool] = True
    shuffles: ClassVar[bool] = False

    def check(self, values: Values, document: Document) -> None:
        """Fault conflicts between the settings, without reading files."""


def on_failure(default: str, what: str) -> tuple[Setting, Setting]:
    """The settings for a message that a step does not pass on.

    Args:
        default: `dead-letter` or `drop`.
        what: which messages are meant, for the description.
    """
    choice = Setting(
        name="on_failure",
        kind=Kind.CHOICE,
        choices=("dead-letter", "drop", DIVERT),
        default=default,
        description=f"The treatment, at its source, of {what}. `dead-letter`: it is dead-lettered with the reason; `drop`: it is "
        "completed; `divert`: it is sent to `divert_to` as it was received, with the reason, and completed when that has acknowledged it.",
        example=default,
    )
    return choice, DIVERT_TO


def check_field(field: str, values: Values, name: str, document: Document) -> None:
    """Fault an invalid field."""
    if not _FIELD.fullmatch(field):
        document.fault(
            values.at(name),
            f"{field!r} is no field",
            "write a field of the JSON body such as origin.name, property:NAME, or system:MessageId",
        )
