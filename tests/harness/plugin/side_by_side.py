"""Which test modules run in one worker, and in which order, when pytest-xdist runs several workers.

A module stays whole: its fixtures start namespaces, Spark and programs of other languages once. Modules that start Spark
form few chains, because each Spark start takes all processors for seconds and each session 1 GiB: with many of them side by
side tests wait for each other. Most of their time they wait for something else (the processors work a quarter of the time of a chain),
so there may be more chains than processors. What takes longest starts first: the chains, then the modules of LONG. Unit tests
start last, because they fill what is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["LONG", "SPARK_CHAINS", "SideBySide", "position"]

# Modules that start Spark, in chains of about equal length. Within a chain one module follows the other, in this order.
# Modules that start it in the process of the tests run together: they share one Java.
SPARK_CHAINS: Mapping[str, tuple[str, ...]] = {
    "spark-1": (
        "tests/fault/route/test_poison.py",
        "tests/fault/route/test_many_routes.py",
        "tests/fault/route/test_lease_change_kill.py",
        "tests/fault/route/test_frozen_driver.py",
        "tests/fault/route/test_route_kill.py",
        "tests/fault/route/test_fault_matrix.py",
        "tests/fault/route/test_batch_kill.py",
        "tests/spark/federation/test_pause.py",
        "tests/spark/federation/test_failover.py",
        "tests/spark/federation/test_counts.py",
        "tests/spark/federation/test_identity.py",
        "tests/spark/federation/test_standalone.py",
        "tests/spark/federation/test_checkpoint_uri.py",
        "tests/spark/federation/test_many_tasks.py",
    ),
    "spark-2": (
        "tests/spark/source/test_streams.py",
        "tests/spark/federation/test_all_active.py",
        "tests/spark/federation/test_windows.py",
        "tests/spark/federation/test_divert.py",
        "tests/spark/federation/test_patterns.py",
        "tests/spark/page/test_tutorial.py",
        "tests/spark/page/test_first_hour.py",
        "tests/spark/source/test_java_choice.py",
        "tests/spark/federation/test_start.py",
    ),
    "spark-3": (
        "tests/spark/federation/test_archive.py",
        "tests/fault/route/test_secret.py",
        "tests/fault/route/test_secret_kinds.py",
        # In the process of the tests:
        "tests/spark/source/test_batch_source.py",
        "tests/spark/source/test_shared_query.py",
        "tests/spark/source/test_servicebus_source.py",
        "tests/spark/source/test_rule_column.py",
        "tests/spark/source/test_kafka_source.py",
        "tests/spark/page/test_examples.py",
        "tests/spark/federation/test_drill.py",
        "tests/spark/federation/test_distance.py",
        "tests/spark/source/test_steps.py",  # last: it ends the Java of the others, since it needs another environment
    ),
}

# Modules that start servers and play a dozen scenarios side by side: one of them keeps a processor busy.
SERVER_CHAINS: Mapping[str, tuple[str, ...]] = {
    "servers": (
        "tests/interop/conformance/test_conformance.py",
        "tests/interop/conformance/test_conformance_compression.py",
        "tests/interop/conformance/test_conformance_eventgrid.py",
        "tests/interop/conformance/test_conformance_eventhubs.py",
        "tests/interop/conformance/test_conformance_queuestorage.py",
        "tests/interop/conformance/test_conformance_rabbitmq.py",
        "tests/interop/conformance/test_conformance_amqp.py",
        "tests/interop/conformance/test_conformance_http.py",
        "tests/interop/connector/test_rabbitmq.py",
        "tests/interop/connector/test_amqp.py",
        "tests/interop/connector/test_amqp_rabbitmq.py",
        "tests/interop/connector/test_eventhubs_checkpoint.py",
        "tests/interop/conformance/test_any_to_any.py",
    ),
}

CHAINS = {**SPARK_CHAINS, **SERVER_CHAINS}

# Modules without Spark that take longest.
LONG = (
    "tests/interop/client/test_client_replicated_receiver.py",
    "tests/fault/client/test_pair_kill.py",
    "tests/fault/client/test_receiver_kill.py",
    "tests/fault/client/test_slow_operations.py",  # it waits for a slow network
    "tests/interop/sdk/test_languages_eventhub.py",  # and the first that needs what Go compiles
    "tests/interop/operator/test_operations.py",
    "tests/interop/client/test_replicated_sender.py",
    "tests/unit/bridge/test_conformance.py",
    "tests/interop/client/test_client_failover_receiver.py",
    "tests/interop/federation/test_pair.py",
    "tests/fault/namespace/test_fuzz.py",
    "tests/interop/sdk/test_eventhub.py",
    "tests/interop/sdk/test_languages_servicebus.py",
    "tests/interop/sdk/test_partitions.py",
    "tests/interop/connector/test_servicebus_port.py",
    "tests/interop/sdk/test_servicebus.py",
    "tests/fault/client/test_operation_kill.py",
    "tests/interop/connector/test_kafka.py",
    "tests/interop/federation/test_kafka_verify.py",
    "tests/fault/namespace/test_bad_input.py",
)

_FIRST = {
    module: number for number, module in enumerate([*(each for chain in CHAINS.values() for each in chain), *LONG])
}


def position(node: str) -> int:
    """The position of a test in the order of all; equal for those that keep the order of collection."""
    return _FIRST.get(node.partition("::")[0], len(_FIRST))


class _Scheduling(LoadScopeScheduling):
    """Hands out whole modules, and whole chains of modules that start Spark.

    A test that ends its worker has failed, and does not run again: it may be one that waited until the time limit. The base runs it
    again in each new worker, and hands out what is complete, after which a worker waits for ever.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        for chain, modules in CHAINS.items():
            if module in modules:
                return chain
        return module

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker has ended; returns the test that ended it."""
        workload = self.assigned_work.pop(node)
        unfinished = [(unit, test) for unit in workload.values() for test, is_done in unit.items() if not is_done]
        if not unfinished:
            return None
        unit, crashed = unfinished[0]
        unit[crashed] = True
        self.workqueue.update((scope, each) for scope, each in workload.items() if not all(each.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        super()._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()  # after what it has; a worker keeps its last test until it knows what follows


class SideBySide:
    """Plugin: takes the place of pytest-xdist's own schedulers."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> LoadScopeScheduling:
        config.option.loadscopereorder = False
        return _Scheduling(config, log)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Work is handed out in the order of collection. One process alone keeps the order of files."""
        if hasattr(config, "workerinput"):
            items.sort(key=lambda item: position(item.nodeid))
