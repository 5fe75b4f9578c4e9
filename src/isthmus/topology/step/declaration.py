"""A step as a task declares it.

What it is: the kind of the step and its settings, as plain values that are sent to Spark's driver and workers as one text. What it
is not: the step's execution, which is `isthmus.replication.step`.

Invariants:
    I1. `StepDeclaration.from_text(step.to_text()) == step`.
    I2. Settings contain references to secrets, never secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidArgumentError
from isthmus.topology.file.document import Place
from isthmus.topology.file.reference import SecretReference

__all__ = ["StepDeclaration"]


@dataclass(frozen=True, slots=True)
class StepDeclaration:
    """One step.

    Attributes:
        kind: e.g. `validate`.
        settings: by name, as values that JSON supports.
        place: its position in the federation file.
        places: the positions of its settings in the file.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default=Place(), compare=False, repr=False)
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        named = self.settings.get("function")
        return f"{self.kind} {named}" if named else self.kind

    def at(self, name: str) -> Place:
        """The position of a setting in the file."""
        return self.places.get(name, self.place)

    def to_text(self) -> str:
        """The step as JSON with one key, the same for equal steps."""
        return json.dumps({self.kind: dict(self.settings)}, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> StepDeclaration:
        """A step from the text of `to_text`.

        Raises:
            InvalidArgumentError: the text is no step.
        """
        try:
            ((kind, settings),) = json.loads(text).items()
            return cls(kind, dict(settings))
        except (ValueError, TypeError, AttributeError):
            raise InvalidArgumentError(f"the step cannot be read: {text[:80]!r}") from None

    def anchored(self, directory: Path, paths: tuple[str, ...], references: tuple[str, ...]) -> StepDeclaration:
        """The same with relative file paths resolved against `directory`.

        Args:
            directory: an absolute path.
            paths: names of the settings that are paths.
            references: names of the settings that are references to secrets, or mappings of names to references.
        """
        settings = dict(self.settings)
        for name in paths:
            if settings.get(name):
                settings[name] = str(directory / settings[name])
        for name in references:
            value = settings.get(name)
            if isinstance(value, str) and value:
                settings[name] = _anchored(value, directory)
            elif isinstance(value, dict):
                settings[name] = {key: _anchored(each, directory) for key, each in value.items()}
        return replace(self, settings=settings)


def _anchored(reference: str, directory: Path) -> str:
    return str(SecretReference.parse(reference).anchored(directory))
