"""What every test may use: the options `--soak` and `--times`, the scale of long runs, the account of what they did, and clean-up at the end."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from harness.plugin.flaky import Flaky
from harness.plugin.forked_namespace import fork_namespaces
from harness.plugin.long_count import ASKED, SEEN, Account
from harness.plugin.module_times import ModuleTimes
from harness.plugin.quick_sdk import shorten_sleeps, stop_second_readers
from harness.plugin.side_by_side import SideBySide
from isthmus.testing.port import take_share

SHORT_RUN_DIVISOR = 20
SHORT_RUN_EXAMPLES = 50  # of hypothesis, for each test that asks for no other number
STEPS_OF_ONE_EXAMPLE = 50
STEPS_AT_LEAST = 32  # on average: some examples end early


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long counts in full, and the tests marked `soak`")
    parser.addoption(
        "--soak-results", metavar="FOLDER", help="also write the account of the long counts into a file there"
    )
    parser.addoption(
        "--again", action="store_true", help="run failed tests again, each alone; one that passes then is let pass"
    )
    parser.addoption("--times", action="store_true", help="print each module's wall time and processor time at the end")


# No deadlines: on a shared machine they measure the other programs. The default run repeats the same examples, so that a
# change is judged by what it changed; the long run looks for new ones.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=SHORT_RUN_EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=SHORT_RUN_EXAMPLES * SHORT_RUN_DIVISOR,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if config.getoption("--soak") else "default")
    config.pluginmanager.register(Account(), "long-count-account")
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(SideBySide(), "side-by-side")
    if config.getoption("--times"):
        config.pluginmanager.register(ModuleTimes(), "module-times")
    if config.getoption("--again") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Flaky(), "flaky")
    if hasattr(config, "workerinput"):  # a server that was killed finds its port free when it starts again
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        take_share(number, config.workerinput["workercount"])
    fork_namespaces()
    # pytest-asyncio asks for the current event loop before it sets its own; where none was ever set, Python up to 3.13
    # makes one then, which is never closed, and its ResourceWarning fails whatever test runs when it is collected.
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _leaves_open(item) and "collected" not in item.fixturenames:
            item.fixturenames.insert(0, "collected")
    if config.getoption("--soak"):
        return
    # By marker: keywords hold the names of the folders above as well.
    left_out = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _leaves_open(item: pytest.Item) -> bool:
    """Whether a test ignores what the garbage collector finds open: it must not find it in a test of another module."""
    marks = item.iter_markers("filterwarnings")
    return any("PytestUnraisableExceptionWarning" in str(argument) for mark in marks for argument in mark.args)


def pytest_collection_finish(session: pytest.Session) -> None:
    """By now the test modules have imported what they use."""
    stop_second_readers()
    # The collected tests stay for the whole run: the collector need not look at them again, which takes 0.15 s each time.
    gc.collect()
    gc.freeze()
    if not session.config.getoption("--soak"):
        shorten_sleeps()


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """azure-servicebus leaves the socket of a connection that broke to the garbage collector: it runs here, not later."""
    yield
    collect()


@pytest.fixture
def collected_each_time() -> Iterator[None]:
    """As `collected`, after each test: for modules whose tests break connections one after the other."""
    yield
    collect()


def collect() -> None:
    """Runs the garbage collector without the warnings of what it finds open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def long_count(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many of a long run's rounds to do: all with `--soak`, otherwise a twentieth, at least one."""

    def scaled(count: int) -> int:
        wanted = count if request.config.getoption("--soak") else max(1, count // SHORT_RUN_DIVISOR)
        if (ASKED, wanted) not in request.node.user_properties:
            request.node.user_properties.append((ASKED, wanted))
        return wanted

    return scaled


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Takes what a long count asked for and what it saw, for the account at the end; call it before asserting."""
    properties, began = request.node.user_properties, time.monotonic()
    return lambda asked, seen: properties.append((SEEN, (asked, f"{seen} ({time.monotonic() - began:.0f} s)")))


@pytest.fixture
def run_model(
    request: pytest.FixtureRequest, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> Callable[[type[RuleBasedStateMachine], int], None]:
    """Runs a machine of hypothesis for so many steps in all (a twentieth without `--soak`), in examples of fifty."""

    def run(machine: type[RuleBasedStateMachine], steps: int) -> None:
        done = {"steps": 0, "examples": 0}

        class Counting(machine):  # type: ignore[misc, valid-type]
            @invariant()
            def count_the_step(self) -> None:
                done["steps"] += 1

            def teardown(self) -> None:
                done["examples"] += 1
                super().teardown()

        how = "the same as always"
        if request.config.getoption("--soak"):
            chosen = request.config.getoption("--hypothesis-seed") or random.SystemRandom().randrange(1 << 32)
            seed(int(chosen))(Counting)
            how = f"seed {chosen}"
        Counting.__name__ = Counting.__qualname__ = machine.__name__
        wanted = long_count(steps)
        try:
            run_state_machine_as_test(
                Counting,
                settings=settings(
                    max_examples=max(1, wanted // STEPS_AT_LEAST),
                    stateful_step_count=STEPS_OF_ONE_EXAMPLE,
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                ),
            )
        finally:
            counted(f"{machine.__name__}: {wanted} steps", f"{done['steps']} in {done['examples']} examples, {how}")

    return run
