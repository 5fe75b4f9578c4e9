"""Whether a task may be moved by this run, as the supervisor sees it.

What it is: the states of a claim, and the protocol of what reports them. What it is not: the claim (`isthmus.supervisor.claim.claim`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

__all__ = ["ClaimState", "ClaimView", "Claims", "NoClaims"]


class ClaimState(StrEnum):
    """Whether a task may be moved by this run, as far as one namespace is concerned."""

    PENDING = "pending"
    HELD = "held"
    ELSEWHERE = "elsewhere"
    UNREACHABLE = "unreachable"
    FAULTY = "faulty"


class ClaimView(NamedTuple):
    """A claim's state, and in words who holds it or what prevents it."""

    state: ClaimState
    text: str = ""


class Claims(Protocol):
    """The claims of a run."""

    def view(self, task: str, alias: str) -> ClaimView:
        """The state of the task's claim at a namespace."""
        ...


class NoClaims:
    """For runs without competitors."""

    def view(self, task: str, alias: str) -> ClaimView:
        """Always held."""
        return ClaimView(ClaimState.HELD)
