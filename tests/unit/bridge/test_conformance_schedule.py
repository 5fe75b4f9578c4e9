"""Random schedules of faults over three routes: nothing is lost, doubled where detection holds, reordered, or stuck."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.lease import state as lease_state
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.fault import Step
from isthmus.testing.bridge.pair import MemoryPair

MESSAGES = 30
_AT_SOURCE = (Step.BEFORE_DELIVERY, Step.AFTER_DELIVERY, Step.BEFORE_SETTLE, Step.AFTER_SETTLE)

Loss = st.tuples(st.sampled_from(list(Step)), st.integers(0, MESSAGES - 1))
Route = st.fixed_dictionaries(
    {
        "losses": st.lists(Loss, max_size=4),
        "source_opens": st.integers(0, 2),
        "target_opens": st.integers(0, 2),
        "dead": st.sets(st.integers(0, 2 * MESSAGES - 1), max_size=2),
        "latency": st.sampled_from([0.0, 0.002]),
        "twice": st.integers(0, 3),
    }
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_state, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(lease_state, "REOPEN_SECONDS", 0.005)
    monkeypatch.setattr(sender_handle, "FIRST_DELAY_SECONDS", 0.005)
    monkeypatch.setattr(sender_handle, "LONGEST_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(sender_handle, "DeliverySettings", partial(DeliverySettings, set_aside_seconds=0.1))


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kinds=st.sampled_from([("queue", "queue"), ("log", "queue"), ("queue", "log")]),
    plans=st.lists(Route, min_size=3, max_size=3),
    kills=st.lists(st.sampled_from(["kill_reader", "kill_sink", "kill"]), max_size=1),
)
def test_any_schedule_of_faults_loses_doubles_and_reorders_nothing(
    kinds: tuple[str, str], plans: list[dict[str, object]], kills: list[str]
) -> None:
    pair = MemoryPair(*kinds)
    bench = Bench(pair)
    try:
        routes = []
        for number, plan in enumerate(plans):
            route = bench.route(f"r{number}", source_lock_seconds=0.3, target_detects_duplicates=True)
            routes.append(route)
            source, target = bench.source(route).faults, bench.target(route).faults
            for step, after in plan["losses"]:  # type: ignore[attr-defined]
                (source if step in _AT_SOURCE else target).lose(step, after=after)
            source.refuse_opens, target.refuse_opens = plan["source_opens"], plan["target_opens"]  # type: ignore[assignment]
            source.duplicate_deliveries = plan["twice"]  # type: ignore[assignment]
            target.latency_seconds = plan["latency"]  # type: ignore[assignment]
            target.verdict = bench.refuses(route, *plan["dead"])  # type: ignore[misc]
            bench.publish(route, MESSAGES)
        with bench.join(*routes) as join:
            for name in kills:
                bench.wait(lambda: any(pair.accepted(route) for route in routes))
                getattr(join, name)()
            for route in routes:
                bench.publish(route, MESSAGES)
            bench.wait_moved(*routes)
        for route, plan in zip(routes, plans, strict=True):
            bench.check(route, dead=sorted(plan["dead"]))  # type: ignore[call-overload]
    finally:
        pair.close()
