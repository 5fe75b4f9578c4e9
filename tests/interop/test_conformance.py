"""The conformance scenarios between real systems: Service Bus and Kafka, each as source and as target.

The servers are started once, and all scenarios run side by side, since most of what they do is waiting; those that kill a server run
afterwards, in rounds: all that wait for the same server's death have it in common.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from conformance_waiver import reason
from isthmus.bridge import lease_state
from isthmus.bridge.delivery_settings import DeliverySettings
from isthmus.bridge.host import sender_handle
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario import SCENARIOS
from isthmus.testing.bridge.system_pair import SystemEnd, SystemPair
from kafka_broker import broker
from kafka_end import KafkaEnd
from servicebus_end import ServiceBusEnd

KINDS = ("servicebus", "kafka")
PAIRS = [(source, target) for source in KINDS for target in KINDS]
SIDE_BY_SIDE = 12
ROUND_SECONDS = 90.0
LEAST = 25


def _cases() -> Iterator[object]:
    for source, target in PAIRS:
        for name in SCENARIOS:
            why = reason(source, target, name)
            marks = [pytest.mark.skip(reason=f"waived: {why}")] if why else []
            yield pytest.param(source, target, name, id=f"{source}-{target}-{name}", marks=marks)


class Round:
    """Kills a server once for all scenarios that wait for it."""

    def __init__(self, end: SystemEnd, parties: int) -> None:
        self._end = end
        self._barrier = threading.Barrier(parties, action=end.restart)

    def restart(self) -> None:
        self._barrier.wait(ROUND_SECONDS)

    def leave(self) -> None:
        """A scenario has ended; whoever still waits has waited in vain."""
        if self._barrier.n_waiting:
            self._barrier.abort()


class Suite:
    """All scenarios that were selected, and what became of them."""

    def __init__(self, ends: dict[str, SystemEnd], wanted: list[tuple[str, str, str]]) -> None:
        self._ends = ends
        self.seconds: dict[tuple[str, str, str], float] = {}
        self._results: dict[tuple[str, str, str], Future[None]] = {each: Future() for each in wanted}
        self._thread = threading.Thread(target=self._run, name="conformance")
        self._thread.start()

    def result(self, case: tuple[str, str, str]) -> None:
        self._results[case].result(600)

    def _run(self) -> None:
        restarting = [each for each in self._results if Ability.RESTARTS in SCENARIOS[each[2]].needs]
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for each in self._results:
                if each not in restarting:
                    pool.submit(self._case, each)
        for kind in KINDS:
            of_kind = [each for each in restarting if kind == (each[0] if "source" in each[2] else each[1])]
            if of_kind:
                shared = Round(self._ends[kind], len(of_kind))
                with ThreadPoolExecutor(len(of_kind)) as pool:
                    for each in of_kind:
                        pool.submit(self._case, each, shared)

    def _case(self, case: tuple[str, str, str], shared: Round | None = None) -> None:
        source, target, name = case
        began = time.monotonic()
        try:
            pair = SystemPair(self._ends[source], self._ends[target], f"{source[0]}{target[0]}.{name}"[:150])
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
        self._thread.join()


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    wanted = [
        (str(each.callspec.params["source"]), str(each.callspec.params["target"]), str(each.callspec.params["name"]))
        for each in request.session.items
        if isinstance(each, pytest.Function)
        and each.path == Path(__file__)
        and "name" in getattr(each, "fixturenames", ())
        and not each.get_closest_marker("skip")
    ]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(lease_state, "RETRY_SECONDS", 0.2)
        patch.setattr(lease_state, "FATAL_SECONDS", 0.2)
        patch.setattr(lease_state, "REOPEN_SECONDS", 0.05)
        patch.setattr(sender_handle, "FIRST_DELAY_SECONDS", 0.05)
        patch.setattr(sender_handle, "LONGEST_DELAY_SECONDS", 0.3)
        patch.setattr(sender_handle, "DeliverySettings", partial(DeliverySettings, set_aside_seconds=0.5))
        servicebus = ServiceBusEnd(tmp_path_factory.mktemp("servicebus"))
        stack.callback(servicebus.close)
        ends: dict[str, SystemEnd] = {"servicebus": servicebus}
        if any("kafka" in each for each in wanted):
            kafka = KafkaEnd(stack.enter_context(broker(tmp_path_factory.mktemp("kafka"))))
            stack.callback(kafka.close)
            ends["kafka"] = kafka
        made = Suite(ends, wanted)
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize(("source", "target", "name"), list(_cases()))
def test_scenario(suite: Suite, source: str, target: str, name: str) -> None:
    suite.result((source, target, name))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_enough_scenarios_are_not_waived(source: str, target: str) -> None:
    assert sum(not reason(source, target, name) for name in SCENARIOS) >= LEAST
