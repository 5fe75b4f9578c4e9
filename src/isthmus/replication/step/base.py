"""The interface of a single-message step.

What it is: the type of such steps, how a step refuses a message, and the treatment of messages on which it fails. What it is
not: a step.

Invariants:
    I1. If a step raises, its message gets a disposition with the step's name and the error, and the next message is processed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from isthmus.bridge.delivery_event import DIVERT, Disposition
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.step.divert import divert_of

__all__ = [
    "STEP_FAILED",
    "MessageStep",
    "NamedStep",
    "Settings",
    "StepRefusalError",
    "disposition_of",
    "failure_of",
    "guarded",
]

STEP_FAILED = "StepFailed"
# Service Bus accepts 4,096 characters of reason and description each; the useful part is at the beginning.
_TEXT_LIMIT = 1000

Settings: TypeAlias = Mapping[str, Any]
"""A step's settings, as `isthmus.topology.step` reads them; one that was not written and has no default is absent."""

MessageStep: TypeAlias = Callable[[StepMessage], Disposition | None]
"""Changes a message, or returns its disposition at the source if it is not passed on. It raises on a failure."""


class StepRefusalError(Exception):
    """A step does not pass a message on.

    Attributes:
        reason: a short name, for DeadLetterReason.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class NamedStep(NamedTuple):
    """A step ready to be applied.

    Attributes:
        name: name for errors.
        apply: the step.
        on_failure: `dead-letter`, `drop`, or `divert:` with the entity.
    """

    name: str
    apply: MessageStep
    on_failure: str = "dead-letter"


def disposition_of(kind: str, reason: str, description: str) -> Disposition:
    """The disposition of a message according to `on_failure`."""
    return Disposition("complete" if kind == "drop" else kind, _text(reason), _text(description))


def failure_of(settings: Settings) -> str:
    """The value of `on_failure` of a step, for `disposition_of`."""
    divert = divert_of(settings)
    return str(settings.get("on_failure", "dead-letter")) if divert is None else f"{DIVERT}:{divert.name}"


def _text(text: str) -> str:
    """A text that can be encoded: JSON may contain halves of surrogate pairs, which UTF-8 cannot."""
    return text[:_TEXT_LIMIT].encode(errors="backslashreplace").decode()


def guarded(step: NamedStep, message: StepMessage) -> Disposition | None:
    """Apply a step to one message; see I1."""
    try:
        return step.apply(message)
    except StepRefusalError as error:
        return disposition_of(step.on_failure, error.reason, f"step {step.name}: {error}")
    except Exception as error:  # noqa: BLE001 - a fault of one message; the others are processed
        return disposition_of(step.on_failure, STEP_FAILED, f"step {step.name}: {type(error).__name__}: {error}")
