"""The fill of a federation's queues and topics, and when they will be full.

What it is: a pure trend over samples of an entity's size, and the thread for each namespace that takes them. A topic is full
when the messages in all its subscriptions reach its size, a queue when those in it and in its dead-letter queue do; publishers are refused then (Microsoft Learn, "Service Bus
quotas"). What it is not: a limit; nothing is deleted.

Invariants:
    I1. A forecast is made only from samples that are at most WINDOW_SECONDS old and at least LEAST_SECONDS apart, and only
        if the topic grows.
    I2. A namespace that cannot be queried delays the samples of no other; its fill is unknown. After any error in a query, others follow; a value
        older than `STALE_SECONDS` counts as unknown.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

from isthmus.connectors.administration import Administration, EntitySize, open_administration
from isthmus.errors import IsthmusError
from isthmus.topology.model import Federation, NamespaceRef, Route

__all__ = ["Fill", "FillTrend", "FillWatch", "entity_of", "fill_now", "topics_of"]

log = logging.getLogger(__name__)

WINDOW_SECONDS = 3600.0
LEAST_SECONDS = 20.0
INTERVAL_SECONDS = 30.0
# If nothing has changed from one query to the next.
IDLE_SECONDS = 60.0
STALE_SECONDS = 3 * IDLE_SECONDS
# From this value on a run warns.
WARN_PERCENT = 80.0
WARN_HOURS = 24.0
# A longer forecast is in `--json` only.
LONGEST_FORECAST_HOURS = 8760.0

Opener = Callable[[NamespaceRef], Administration]


class Fill(NamedTuple):
    """The fill of a topic or queue.

    Attributes:
        namespace: its alias.
        topic: its name, or the queue's.
        used_bytes: of all its messages.
        limit_bytes: its size.
        hours_until_full: at its present growth; None if it does not grow, or that is not known yet.
        kind: `topic` or `queue`.
    """

    namespace: str
    topic: str
    used_bytes: int
    limit_bytes: int
    hours_until_full: float | None = None
    kind: str = "topic"

    @property
    def percent(self) -> float:
        """How full it is."""
        return 100.0 * self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0

    @property
    def warns(self) -> bool:
        """Whether an operator has to act soon."""
        return self.percent >= WARN_PERCENT or (self.hours_until_full or WARN_HOURS) < WARN_HOURS

    def text(self) -> str:
        """The fill as a short text."""
        size = f"{self.percent:.0f} % of {self.limit_bytes / 1024**3:g} GB"
        hours = self.hours_until_full
        when = (
            ""
            if hours is None or hours > LONGEST_FORECAST_HOURS
            else f", full in {hours:,.0f} h"
            if hours >= 2
            else f", full in {60 * hours:.0f} min"
        )
        return f"{self.kind} {self.topic} at {self.namespace}: {size}{when}"

    def to_dict(self) -> dict[str, Any]:
        """The fill as plain values."""
        hours = None if self.hours_until_full is None else round(self.hours_until_full, 2)
        return {**self._asdict(), "hours_until_full": hours, "percent": round(self.percent, 1), "warns": self.warns}


class FillTrend:
    """The size of one topic over time; seconds of any one clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, now: float, used_bytes: int) -> None:
        """The size of the topic was queried."""
        self._samples.append((now, used_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_SECONDS:
            self._samples.popleft()

    def hours_until_full(self, limit_bytes: int) -> float | None:
        """The time until it is full at its present growth; None if it does not grow, or that is not known yet."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        if last_at - first_at < LEAST_SECONDS or last <= first:
            return None
        return max(0.0, (limit_bytes - last) / ((last - first) / (last_at - first_at)) / 3600)


def entity_of(path: str) -> str:
    """The topic or queue of a path: of a subscription, or of a dead-letter queue."""
    return path.partition("/Subscriptions/")[0].partition("/$")[0]


def topics_of(routes: Iterable[Route]) -> dict[str, list[str]]:
    """By alias, the topics and queues that routes read from and send to."""
    found: dict[str, dict[str, None]] = {}
    for route in routes:
        for each in (route.source, *(target for target in route.sent_to if not target.is_table)):
            found.setdefault(each.alias, {})[entity_of(each.entity)] = None
        if route.options.feed:
            found[route.source.alias][route.entered] = None
    return {alias: list(topics) for alias, topics in found.items()}


class FillWatch:
    """Samples all topics, in the background.

    Args:
        federation: with absolute paths.
        routes: whose topics to query.
        opener: opens a namespace's administration.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        federation: Federation,
        routes: Sequence[Route],
        opener: Opener = open_administration,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._found: dict[tuple[str, str], tuple[float, Fill]] = {}
        self._opener = opener
        self._clock = clock
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._watch, args=(federation.namespaces[alias], topics), name=f"fill-{alias}", daemon=True
            )
            for alias, topics in topics_of(routes).items()
        ]

    def start(self) -> FillWatch:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop; a pending request ends by itself."""
        self._stop.set()

    def fills(self) -> list[Fill]:
        """The known values, the topics of one namespace after those of another."""
        oldest, found = self._clock() - STALE_SECONDS, self._found
        return [fill for seen_at, fill in (found[key] for key in sorted(found)) if seen_at > oldest]

    def _watch(self, namespace: NamespaceRef, topics: Sequence[str]) -> None:
        trends = {topic: FillTrend() for topic in topics}
        before: dict[str, EntitySize] = {}
        with _SizeQuery(namespace, self._opener) as query:
            while not self._stop.is_set():
                sizes = query.sizes(topics)
                for topic, (used, limit, kind) in sizes.items():
                    now = self._clock()
                    trends[topic].add(now, used)
                    hours = trends[topic].hours_until_full(limit)
                    self._found[namespace.alias, topic] = now, Fill(namespace.alias, topic, used, limit, hours, kind)
                self._stop.wait(IDLE_SECONDS if sizes and sizes == before else INTERVAL_SECONDS)
                before = sizes


def fill_now(
    federation: Federation,
    routes: Iterable[Route],
    before: Mapping[tuple[str, str], tuple[float, int]],
    opener: Opener = open_administration,
) -> list[Fill]:
    """Sample once, and forecast from an earlier sample where there is one.

    Args:
        federation: with absolute paths.
        routes: whose topics to query.
        before: by alias and topic, wall seconds and size of an earlier sample.
        opener: opens a namespace's administration.
    """
    topics = topics_of(routes)
    if not topics:
        return []
    with ThreadPoolExecutor(len(topics), thread_name_prefix="fill") as pool:
        samples = pool.map(lambda alias: _once(federation.namespaces[alias], topics[alias], opener), topics)
    found = []
    for alias, sizes in zip(topics, samples, strict=True):
        for topic, (used, limit, kind) in sizes.items():
            trend = FillTrend()
            if (alias, topic) in before:
                trend.add(*before[alias, topic])
            trend.add(time.time(), used)
            found.append(Fill(alias, topic, used, limit, trend.hours_until_full(limit), kind))
    return found


def _once(namespace: NamespaceRef, topics: Sequence[str], opener: Opener) -> dict[str, EntitySize]:
    with _SizeQuery(namespace, opener) as query:
        return query.sizes(topics)


class _SizeQuery:
    """Queries one namespace for sizes, repeatedly over one connection; a new one after a failure."""

    def __init__(self, namespace: NamespaceRef, opener: Opener) -> None:
        self._namespace = namespace
        self._opener = opener
        self._administration: Administration | None = None
        self._has_warned = False

    def sizes(self, topics: Sequence[str]) -> dict[str, EntitySize]:
        """The size of the topics and queues, as far as the namespace reports them for this key."""
        try:
            if self._administration is None:
                self._administration = self._opener(self._namespace)
            found = {topic: self._administration.size(topic) for topic in topics}
        except Exception as error:  # noqa: BLE001 - I2: a thread that ends would leave its last values as valid
            if not isinstance(error, IsthmusError | OSError) and not self._has_warned:
                self._has_warned = True
                alias, kind = self._namespace.alias, type(error).__name__
                log.warning("namespace %s: the sizes of its topics are unknown: %s: %s", alias, kind, error)
            self._close()
            return {}
        return {topic: size for topic, size in found.items() if size is not None}

    def _close(self) -> None:
        administration, self._administration = self._administration, None
        if administration is not None:
            with contextlib.suppress(Exception):
                administration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
