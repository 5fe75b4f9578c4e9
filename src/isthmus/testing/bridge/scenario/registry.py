"""The scenarios by name.

What it is: the parameters of a conformance test. What it is not: their code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability

__all__ = ["SCENARIOS", "Scenario", "scenario"]


class Scenario(NamedTuple):
    """One scenario.

    Attributes:
        name: of its function.
        run: what it does; fails by AssertionError.
        needs: the abilities that its pair must have.
    """

    name: str
    run: Callable[[Bench], None]
    needs: frozenset[Ability]


SCENARIOS: dict[str, Scenario] = {}


def scenario(*needs: Ability) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Registers a scenario."""

    def register(run: Callable[[Bench], None]) -> Callable[[Bench], None]:
        name = run.__name__
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, run, frozenset(needs))
        return run

    return register
