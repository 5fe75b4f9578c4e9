"""Where the time of a test run goes: per module wall time and processor time, as a table at the end (`--times`).

The processor time is that of the process of the tests and of its children that ended and were waited for, with what they
waited for themselves (getrusage(2), RUSAGE_SELF and RUSAGE_CHILDREN). A child that outlives its module counts where it
ends; one that is not waited for counts nowhere. A module whose processor time is far below its wall time waits.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

__all__ = ["ModuleTimes", "Spent"]

COLLECTION = "(collection)"
_OUTPUT = "module times"


class Spent(NamedTuple):
    """What was spent, in seconds: by the clock, by the tests' own process, by its ended children."""

    tests: int
    wall: float
    own: float
    children: float

    def __add__(self, other: object) -> Spent:
        assert isinstance(other, Spent)
        return Spent(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


NOTHING = Spent(0, 0.0, 0.0, 0.0)


def _until_now() -> Spent:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(0, time.monotonic(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime)


def _since(began: Spent, tests: int) -> Spent:
    now = _until_now()
    return Spent(tests, now.wall - began.wall, now.own - began.own, now.children - began.children)


class ModuleTimes:
    """Plugin of every process of a run: workers of pytest-xdist measure, the controller prints.

    Attributes:
        spent: by worker (empty for a run of one process) and module.
    """

    def __init__(self) -> None:
        self.spent: dict[tuple[str, str], Spent] = {}

    def add(self, worker: str, module: str, spent: Spent) -> None:
        self.spent[worker, module] = self.spent.get((worker, module), NOTHING) + spent

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        began = _until_now()
        done = yield
        self.add("", COLLECTION, _since(began, 0))
        return done

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A module's fixtures begin in the protocol of its first test and end in that of its last."""
        began = _until_now()
        done = yield
        self.add("", item.nodeid.partition("::")[0], _since(began, 1))
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = [(module, *spent) for (_, module), spent in self.spent.items()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for module, *spent in getattr(node, "workeroutput", {}).get(_OUTPUT, ()):
            self.add(node.gateway.id, module, Spent(*spent))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("times of modules, in seconds")
        terminalreporter.line(f"{'tests':>6} {'wall':>7} {'own':>7} {'children':>8}  module")
        for (worker, module), spent in sorted(self.spent.items(), key=lambda each: -each[1].wall):
            terminalreporter.line(f"{_row(spent)}  {module} {worker}")
        for worker in sorted({worker for worker, _ in self.spent}):
            total = sum((spent for (of, _), spent in self.spent.items() if of == worker), NOTHING)
            terminalreporter.line(f"{_row(total)}  all of {worker or 'this process'}")


def _row(spent: Spent) -> str:
    return f"{spent.tests:6} {spent.wall:7.1f} {spent.own:7.1f} {spent.children:8.1f}"
