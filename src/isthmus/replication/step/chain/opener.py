"""Single-message steps, opened from their declarations.

What it is: the module that opens each kind. It reads the files and keys that a step needs. What it is not: the steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.replication.step.base import MessageStep, NamedStep, failure_of
from isthmus.topology.step import StepDeclaration

__all__ = ["open_message_step", "open_message_steps"]

# Modules are imported when a step needs them: a worker without `encrypt` needs no cryptography.
_OPENERS = {
    "validate": ("validate", "open_validate"),
    "filter": ("rule", "open_filter"),
    "set": ("rule", "open_set"),
    "enrich": ("enrich", "open_enrich"),
    "map": ("body", "open_map"),
    "reduce": ("body", "open_reduce"),
    "normalise": ("normalise", "open_normalise"),
    "encrypt": ("cipher", "open_encrypt"),
    "decrypt": ("cipher", "open_decrypt"),
    "python": ("custom", "open_function"),
    "aggregate": ("aggregate", "open_aggregate"),
}


def open_message_step(step: StepDeclaration) -> NamedStep:
    """An opened step.

    Raises:
        InvalidArgumentError: a file, a key or a function that it names is invalid.
    """
    module, function = _OPENERS[step.kind]
    opener = getattr(importlib.import_module(f"isthmus.replication.step.{module}"), function)
    try:
        apply: MessageStep = opener(step.settings)
    except (IsthmusError, OSError, ValueError) as error:
        raise InvalidArgumentError(f"step {step}: {error}") from None
    return NamedStep(str(step), apply, failure_of(step.settings))


def open_message_steps(texts: Sequence[str]) -> list[NamedStep]:
    """Opened steps from texts of `StepDeclaration.to_text`, in order; see `open_message_step`."""
    return [open_message_step(StepDeclaration.from_text(text)) for text in texts]
