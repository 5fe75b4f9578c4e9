"""Which test modules run in one worker, when pytest-xdist runs several workers.

A module stays whole: its fixtures start namespaces, Spark and programs of other languages once. Modules that start Spark
form few chains, because each Spark start takes all processors for seconds and each session 1 GiB: with more of them side by
side than processors, tests wait for each other. Modules start in the order of collection: kills and Spark first, because
they take longest, unit tests last, because they fill what is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["SideBySide"]

# Modules that start Spark, in chains of about equal length. Within a chain one module follows the other.
SPARK_CHAINS: Mapping[str, tuple[str, ...]] = {
    "spark-1": (
        "tests/fault/test_batch_kill.py",
        "tests/fault/test_fault_matrix.py",
        "tests/fault/test_frozen_driver.py",
        "tests/fault/test_lease_change_kill.py",
        "tests/fault/test_secret.py",
        "tests/spark/test_all_active.py",
        "tests/spark/test_archive.py",
        "tests/spark/test_rule_column.py",
        "tests/spark/test_servicebus_source.py",
    ),
    "spark-2": (
        "tests/fault/test_many_routes.py",
        "tests/fault/test_poison.py",
        "tests/fault/test_route_kill.py",
        "tests/spark/test_batch_source.py",
        "tests/spark/test_counts.py",
        "tests/spark/test_identity.py",
        "tests/spark/test_java_choice.py",
        "tests/spark/test_shared_query.py",
        "tests/spark/test_tutorial.py",
    ),
}


class _Scheduling(LoadScopeScheduling):
    """Hands out whole modules, and whole chains of modules that start Spark."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        for chain, modules in SPARK_CHAINS.items():
            if module in modules:
                return chain
        return module


class SideBySide:
    """Plugin: takes the place of pytest-xdist's own schedulers."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> LoadScopeScheduling:
        config.option.loadscopereorder = False
        return _Scheduling(config, log)
