"""The fences of the routes of one reader.

What it is: one fence for each claim, shared by the routes of that claim, and the questions to the driver, each of which asks for all
claims at once. What it is not: the fence (`isthmus.bridge.lease.fence`), or the connection to the driver.

Invariants:
    I1. An answer moves only the fences of its question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from isthmus.bridge.lease.fence import ASK_SECONDS, Fence

__all__ = ["ClaimBook"]


class ClaimBook:
    """The fences by claim.

    Attributes:
        ask_at: when the next question is due, monotonic seconds; infinite where no claim is needed.
    """

    def __init__(self) -> None:
        self.ask_at = math.inf
        self._fences: dict[str, Fence] = {}
        self._number = 0
        self._asked: dict[int, dict[str, int]] = {}  # by question: the question of each fence

    def fence(self, claim: str, now: float) -> Fence:
        """The fence of a claim; without a claim one that is always open."""
        if not claim:
            return Fence(False, now)
        if claim not in self._fences:
            self._fences[claim] = Fence(True, now)
            self.ask_at = now
        return self._fences[claim]

    def ask(self, now: float) -> int:
        """The number of the question to send now; 0: none is due."""
        if now < self.ask_at:
            return 0
        self.ask_at = now + ASK_SECONDS
        asked = {claim: number for claim, fence in self._fences.items() if (number := fence.ask(now))}
        if not asked:
            return 0
        self._number += 1
        self._asked[self._number] = asked
        return self._number

    def answer(self, number: int, claims: Mapping[str, float], now: float) -> dict[str, bool]:
        """Takes the driver's answer; returns the claims whose fence moved, and whether it was closed before."""
        asked = self._asked.get(number)
        if asked is None:
            return {}
        self._asked = {each: questions for each, questions in self._asked.items() if each > number}
        moved: dict[str, bool] = {}
        for claim, question in asked.items():
            fence = self._fences[claim]
            was_closed = not fence.is_open(now)
            if claim in claims and fence.answer(question, float(claims[claim])):
                moved[claim] = was_closed
        return moved

    def until_ns(self) -> dict[str, int]:
        """Until when the claims that were confirmed are held, monotonic."""
        return {claim: int(each.until * 1e9) for claim, each in self._fences.items() if each.until > -math.inf}
