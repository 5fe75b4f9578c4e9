"""The consent, the result and the comparison of a keeper's round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isthmus.errors import IsthmusError
from isthmus.topology.pair.description import Key
from isthmus.topology.pair.difference import Drift, Step

__all__ = ["Comparison", "Consent", "Round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """The actions that an operator permits in a round beyond those that it does by itself.

    Attributes:
        foreign: delete entities at the standby member that pairing did not make and the active member lacks.
        messages: delete entities although they have messages.
    """

    foreign: bool = False
    messages: bool = False


@dataclass(slots=True)
class Round:
    """The result of a round.

    Attributes:
        drift: before it.
        done: steps that were made.
        failed: steps that were refused, and why.
        pending: steps that were not begun, since the round was stopped.
        seconds: how long it took.
    """

    drift: Drift
    done: list[Step] = field(default_factory=list)
    failed: list[tuple[Step, IsthmusError]] = field(default_factory=list)
    pending: list[Step] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_in_step(self) -> bool:
        """Whether no difference is left."""
        return not self.failed and not self.pending and not self.drift.conflicts

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "in_step": self.is_in_step,
            "done": [str(step) for step in self.done],
            "failed": [{"step": str(step), "error": error.to_dict()} for step, error in self.failed],
            "pending": [str(step) for step in self.pending],
            "conflicts": [str(each) for each in self.drift.conflicts],
            "only_at_standby": [each.path for each in self.drift.foreign],
            "seconds": round(self.seconds, 3),
        }


class Comparison(NamedTuple):
    """The result of a comparison.

    Attributes:
        drift: between the members.
        statuses: of the active member's entities that are not Active.
        existing: keys of the standby member's entities.
    """

    drift: Drift
    statuses: Mapping[str, str]
    existing: frozenset[Key]
