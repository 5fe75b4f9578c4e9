"""The conformance scenarios for pairs of real systems: what is common to the modules `interop/conformance/test_conformance*.py`.

What it is: `Suite`, which runs all selected scenarios of a module; `cases` and `make_suite`, of which a module is made. The servers are
started once, and all scenarios run side by side, since most of what they do is waiting; those that kill a server run afterwards, in
rounds: all that wait for the same server's death have it in common. What it is not: a scenario (`isthmus.testing.bridge.scenario`), nor a
system (`SystemEnd`).

A module for a new kind:

    PAIRS = pairs_of("mykind")
    suite = make_suite({"servicebus": servicebus_end, "mykind": my_end})

    @pytest.mark.parametrize(CASE, cases(PAIRS))
    def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
        suite.result((source, target, name))

    @pytest.mark.parametrize(("source", "target"), PAIRS)
    def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
        assert asked(source, target) >= LEAST

What the kind is not asked is listed in `waiver_mykind.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.conformance.conformance_waiver import reason
from harness.conformance.servicebus_end import ServiceBusEnd
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.lease import state as lease_state
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario import SCENARIOS
from isthmus.testing.bridge.system_pair import SystemEnd, SystemPair

__all__ = [
    "ACROSS",
    "CASE",
    "LEAST",
    "EndOpener",
    "Suite",
    "asked",
    "cases",
    "make_suite",
    "pairs_of",
    "quick_retries",
    "servicebus_end",
]

CASE = ("source", "target", "name")
ACROSS = frozenset(
    {
        "a_message_that_is_too_large_for_the_target",
        "one_is_refused_for_itself",
        "empty_messages",
        "large_messages",
        "order_is_kept",
        "reader_killed_after_a_settlement",
        "sink_killed_after_a_store",
        "source_lost_after_a_settlement",
        "target_lost_after_it_stored",
        "the_server_of_the_source_is_killed",
        "the_server_of_the_target_is_killed",
        "an_unreadable_message",
    }
)
"""What is played with all tests between a kind and Service Bus, where the kind with itself has all scenarios."""
SIDE_BY_SIDE = 12
LEAST = 25

# Starts a system in a new folder; it ends with the context.
EndOpener = Callable[[Path], AbstractContextManager[SystemEnd]]


def servicebus_end(folder: Path) -> AbstractContextManager[SystemEnd]:
    """Service Bus."""
    return closing(ServiceBusEnd(folder))


def pairs_of(kind: str) -> list[tuple[str, str]]:
    """A kind with itself, and with Service Bus in either direction."""
    return [(kind, kind), ("servicebus", kind), (kind, "servicebus")]


def cases(pairs: Sequence[tuple[str, str]], always: frozenset[str] | None = None) -> list[Any]:
    """All scenarios of all pairs as parameters `CASE`; what is waived is skipped with its reason.

    Args:
        pairs: of kinds.
        always: scenarios that run with all tests where the two kinds of a pair differ, the others with --soak; None: all.
    """
    made = []
    for source, target in pairs:
        for name in SCENARIOS:
            why = reason(source, target, name)
            marks = [pytest.mark.skip(reason=f"waived: {why}")] if why else []
            if always is not None and source != target and name not in always:
                marks.append(pytest.mark.soak)
            made.append(pytest.param(source, target, name, id=f"{source}-{target}-{name}", marks=marks))
    return made


def asked(source: str, target: str) -> int:
    """How many scenarios are not waived for a pair."""
    return sum(not reason(source, target, name) for name in SCENARIOS)


def make_suite(openers: Mapping[str, EndOpener], pair: Callable[..., SystemPair] = SystemPair) -> Any:
    """The fixture `suite` of a module: starts those systems that the selected tests need, and runs these tests.

    Args:
        openers: of its systems, by kind.
        pair: makes a pair of them.
    """

    @pytest.fixture(scope="module")
    def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
        wanted = _wanted(request)
        with quick_retries(), ExitStack() as stack:
            # Scenarios ask in threads, and pytest writes each test's name into the environment meanwhile: it must not be read.
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(
                "requests.sessions.get_environ_proxies", _no_proxies
            )
            ends = {
                kind: stack.enter_context(opener(tmp_path_factory.mktemp(kind)))
                for kind, opener in openers.items()
                if any(kind in each[:2] for each in wanted)
            }
            made = Suite(ends, wanted, pair)
            stack.callback(made.close)
            yield made

    return suite


@contextmanager
def quick_retries() -> Iterator[None]:
    """What was lost is tried again soon: the servers are on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_state, "RETRY_SECONDS", 0.2)
        patch.setattr(lease_state, "FATAL_SECONDS", 0.2)
        patch.setattr(lease_state, "REOPEN_SECONDS", 0.05)
        patch.setattr(sender_handle, "FIRST_DELAY_SECONDS", 0.05)
        patch.setattr(sender_handle, "LONGEST_DELAY_SECONDS", 0.3)
        patch.setattr(sender_handle, "DeliverySettings", partial(DeliverySettings, set_aside_seconds=0.5))
        yield


def _no_proxies(*_: object, **__: object) -> dict[str, str]:
    return {}


def _wanted(request: pytest.FixtureRequest) -> list[tuple[str, str, str]]:
    """The scenarios of the module that were selected."""
    return [
        (str(each.callspec.params["source"]), str(each.callspec.params["target"]), str(each.callspec.params["name"]))
        for each in request.session.items
        if isinstance(each, pytest.Function)
        and each.path == request.path
        and {"name", "suite"} <= set(getattr(each, "fixturenames", ()))
        and not each.get_closest_marker("skip")
    ]


class Round:
    """Kills a server once for all scenarios that wait for it."""

    def __init__(self, end: SystemEnd, parties: int) -> None:
        self._end = end
        self._barrier = threading.Barrier(parties, action=end.restart)

    def restart(self) -> None:
        self._barrier.wait(max(90.0, self._end.wait_seconds))

    def leave(self) -> None:
        """A scenario has ended; what still waits for it fails."""
        if self._barrier.n_waiting:
            self._barrier.abort()


class Suite:
    """All scenarios that were selected, and what became of them.

    Args:
        ends: systems that run, by kind.
        wanted: source, target and name of each scenario.
        pair: makes a pair of systems.
    """

    def __init__(
        self,
        ends: Mapping[str, SystemEnd],
        wanted: Sequence[tuple[str, str, str]],
        pair: Callable[..., SystemPair] = SystemPair,
    ) -> None:
        self._ends = ends
        self._pair = pair
        self.seconds: dict[tuple[str, str, str], float] = {}
        self._results: dict[tuple[str, str, str], Future[None]] = {each: Future() for each in wanted}
        self._thread = threading.Thread(target=self._run, name="conformance")
        self._thread.start()

    def result(self, case: tuple[str, str, str]) -> None:
        """Waits for a scenario, and raises what it raised."""
        self._results[case].result(600)

    def _run(self) -> None:
        restarting = [each for each in self._results if Ability.RESTARTS in SCENARIOS[each[2]].needs]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for each in self._results:
                if each not in restarting:
                    pool.submit(self._case, each)
        for kind, end in self._ends.items():
            of_kind = [each for each in restarting if kind == (each[0] if "source" in each[2] else each[1])]
            if of_kind:
                shared = Round(end, len(of_kind))
                with ThreadPoolExecutor(len(of_kind)) as pool:
                    for each in of_kind:
                        pool.submit(self._case, each, shared)

    def _case(self, case: tuple[str, str, str], shared: Round | None = None) -> None:
        source, target, name = case
        began = time.monotonic()
        try:
            pair = self._pair(self._ends[source], self._ends[target], f"{source[0]}{target[0]}.{name}"[:150])
            if shared is not None:
                pair.restart = lambda side: shared.restart()  # type: ignore[method-assign]
            try:
                SCENARIOS[name].run(Bench(pair))
            finally:
                pair.close()
        except BaseException as error:  # noqa: BLE001 - the test of the case raises it
            self._results[case].set_exception(error)
        else:
            self._results[case].set_result(None)
        finally:
            self.seconds[case] = time.monotonic() - began
            if shared is not None:
                shared.leave()

    def close(self) -> None:
        """Waits for the rest."""
        self._thread.join()
