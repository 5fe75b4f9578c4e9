"""The counts of clients for prometheus_client.

What it is: a collector that reads `statistics()` of each client when it is scraped. What it is not: counting; the classes count by
themselves, with or without it.

Invariants:
    I1. It keeps no client alive; a deleted client has no metrics any more.
    I2. A client with unreadable statistics does not affect the metrics of the others.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from isthmus.client.telemetry.sample import class_name, samples

__all__ = ["ClientMetrics"]

_log = logging.getLogger(__name__)


class ClientMetrics(Collector):
    """The metrics of the clients that are added.

    Args:
        registry: registry that serves the metrics; None: the default one of prometheus_client.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._clients: list[tuple[str, weakref.ref[Any]]] = []
        (registry or REGISTRY).register(self)

    def add(self, name: str, client: Any) -> None:
        """Add the metrics of a client.

        Args:
            name: the label `client`, e.g. its purpose.
            client: an object of `isthmus.client` or `isthmus.client.aio`; anything with `statistics()`.
        """
        with self._lock:
            self._clients = [(each, found) for each, found in self._clients if found() is not None]
            self._clients.append((name, weakref.ref(client)))

    def describe(self) -> list[Metric]:
        """Nothing: the metrics depend on the clients."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        families: dict[str, Metric] = {}
        with self._lock:
            clients = list(self._clients)
        for name, found in clients:
            client = found()
            if client is None:
                continue
            try:
                read = list(samples(client.statistics()))
            except Exception:  # noqa: BLE001 - the metrics of the others are still collected
                _log.exception("no metrics of a client: name=%s", name)
                continue
            prefix = f"isthmus_client_{class_name(client)}"
            for sample in read:
                labels = [key for key, _ in sample.labels]
                full = f"{prefix}_{sample.name}"
                family = families.get(full)
                if family is None:
                    kind = CounterMetricFamily if sample.is_counter else GaugeMetricFamily
                    text = f"{sample.name.replace('_', ' ')} of {type(client).__name__.removeprefix('Async')}"
                    family = families[full] = kind(full, text, labels=["client", *labels])
                family.add_metric([name, *(value for _, value in sample.labels)], sample.value)  # type: ignore[attr-defined]
        yield from families.values()
