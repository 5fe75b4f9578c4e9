"""The state of a task's claim, as the supervisor sees it.

What it is: the states of a claim, and the protocol of the objects that report them. What it is not: the claim (`isthmus.supervisor.claim.claim`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

__all__ = ["ClaimState", "ClaimView", "Claims", "NoClaims"]


class ClaimState(StrEnum):
    """The state of a claim at one namespace."""

    PENDING = "pending"
    HELD = "held"
    ELSEWHERE = "elsewhere"
    UNREACHABLE = "unreachable"
    FAULTY = "faulty"


class ClaimView(NamedTuple):
    """A claim's state, and its holder or the obstacle as text."""

    state: ClaimState
    text: str = ""


class Claims(Protocol):
    """The claims of a run."""

    def view(self, task: str, alias: str) -> ClaimView:
        """The state of the task's claim at a namespace."""
        ...


class NoClaims:
    """For runs without other runs."""

    def view(self, task: str, alias: str) -> ClaimView:
        """Always held."""
        return ClaimView(ClaimState.HELD)
