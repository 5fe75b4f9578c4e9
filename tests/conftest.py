"""What every test may use: the option `--soak` and the scale of long runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

SHORT_RUN_DIVISOR = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long counts in full, and the tests marked `soak`")


# No deadlines: on a shared machine they measure the neighbours. The default run repeats the same examples, so that a
# change is judged by what it changed; the long run looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("soak" if config.getoption("--soak") else "default")
    # pytest-asyncio asks for the current event loop before it sets its own; where none was ever set, Python up to 3.13
    # makes one then, which nobody closes, and its ResourceWarning fails whatever test runs when it is collected.
    asyncio.set_event_loop(None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--soak"):
        return
    # By marker: keywords hold the names of the folders above as well.
    left_out = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def long_count(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many of a long run's rounds to do: all with `--soak`, otherwise a twentieth, at least one."""

    def scaled(count: int) -> int:
        return count if request.config.getoption("--soak") else max(1, count // SHORT_RUN_DIVISOR)

    return scaled
