"""Queue to stream: the messages of a queue or topic become records of a log.

What it is: the pattern's settings, its checks, the entities that it wants and its route (Microsoft Learn, "Message replication
tasks patterns"). A queue is emptied: a message is settled there once the log has it. A topic is copied, by a subscription of the task.
SessionId, or else PartitionKey, becomes the record's key. What it is not: the mapping (docs/how-to/use-kafka.md).

Invariants:
    I1. One route for each task, claimed at the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isthmus.topology.check.rule_check import check_filter
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import SUBSCRIPTION_NAME_LIMIT, Kind, Setting, Spec
from isthmus.topology.model import Endpoint, Federation, Flow, LogOptions, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.pattern.base import COMMON_PLANNED
from isthmus.topology.pattern.ordering import in_sessions
from isthmus.topology.pattern.part.log_end import (
    PARTITIONS,
    REPLICATION,
    check_kind,
    check_stream,
    common,
    entity,
    replication_subscription,
    source_subscription,
)
from isthmus.topology.state import LogState, QueueState, TopicState, WantedState

__all__ = ["QueueToStream", "QueueToStreamTask"]

SPEC = Spec(
    "queue-to-stream",
    "The messages of a queue or topic become records of a stream, e.g. of a topic of Kafka: SessionId, or else "
    "PartitionKey, becomes the key, and application properties become headers. A queue is emptied, a topic is copied.",
    (
        Setting(
            name="source",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace of the queue or topic.",
            example="ewr",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue; the task consumes it. Exactly one of `queue` and `topic` is written.",
            example="departures",
        ),
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="A topic instead of a queue; the task creates a subscription there.",
            example="departures",
        ),
        Setting(
            name="target",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace of the stream, of kind `kafka` or `eventhubs`.",
            example="hub",
        ),
        Setting(
            name="stream",
            kind=Kind.TEXT,
            required=True,
            description="The stream: a topic of Kafka.",
            example="flights",
        ),
        Setting(
            name="partitioning",
            kind=Kind.CHOICE,
            choices=("key", "single"),
            default="key",
            description="How the partition is chosen. `key`: the key, so that messages of one session or partition key keep their order; "
            "those without a key go to any partition. `single`: the first partition, which keeps the order of all messages.",
            example="single",
        ),
        PARTITIONS,
        REPLICATION,
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="With `topic`: SQL filter; only messages that it selects are copied.",
            example="\"carrier = 'UA'\"",
        ),
        Setting(
            name="lock_duration",
            kind=Kind.DURATION,
            default=30_000,
            minimum=5_000,
            maximum=300_000,
            description="With `topic`: LockDuration of the task's subscription.",
            example="30s",
        ),
        common("start"),
        common("ordering"),
        common("refused"),
        common("steps"),
        common("rate"),
        common("ledger"),
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueToStreamTask(Task):
    """A task of this pattern.

    Attributes:
        entity: the queue or topic.
        is_topic: whether it is a topic.
        stream: the log that is written.
        partitioning: `key` or `single`.
        initial_partitions: partitions of a stream that is created; None: one.
        initial_replication: replication factor of a stream that is created.
        filter: condition of the messages that are copied from a topic; empty for all.
        lock_duration_ms: LockDuration of the task's subscription.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
    """

    entity: Endpoint
    is_topic: bool = False
    stream: Endpoint
    partitioning: str = "key"
    initial_partitions: int | None = None
    initial_replication: int | None = None
    filter: str = ""
    lock_duration_ms: int = 30_000
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "dead-letter"

    @property
    def claim_members(self) -> tuple[str, ...]:
        """The source: a log cannot contain a claim."""
        return (self.entity.alias,)


class QueueToStream:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> QueueToStreamTask | None:
        source = entity(name, values, document)
        check_stream("stream", values, document)
        self._check_order(values, document)
        if values["filter"]:
            check_filter(values["filter"], values.at("filter"), document)
        for setting in ("filter", "lock_duration"):
            if values.written(setting) and not values.written("topic"):
                document.fault(values.at(setting), f"{setting} needs topic: a queue has no rules", f"remove {setting}")
        if not source or not all(values[each] for each in ("source", "stream", "target")):
            return None
        return QueueToStreamTask(
            name=name,
            pattern=SPEC.name,
            members=(values["source"], values["target"]),
            place=values.place,
            places=values.places,
            entity=Endpoint(values["source"], source),
            is_topic=values.written("topic"),
            stream=Endpoint(values["target"], values["stream"]),
            partitioning=values["partitioning"],
            initial_partitions=values["partitions"],
            initial_replication=values["replication"],
            filter=values["filter"] or "",
            lock_duration_ms=values["lock_duration"],
            start=values["start"],
            ordering=values["ordering"],
            refused=values["refused"],
        )

    @staticmethod
    def _check_order(values: Values, document: Document) -> None:
        """Fault settings that contradict the order of a log: it orders within a partition only."""
        if values["partitioning"] != "single":
            return
        if (values["partitions"] or 1) > 1:
            document.fault(
                values.at("partitions"),
                "a stream is not ordered over its partitions: with partitioning: single all messages go to the first one",
                "remove partitions, or write partitioning: key to keep the order of each key",
            )
        if values["ordering"] == "none":
            document.fault(
                values.at("partitioning"),
                "partitioning: single keeps an order, ordering: none keeps none",
                "remove one",
            )

    def named(self, task: QueueToStreamTask, namespaces: Mapping[str, NamespaceRef]) -> QueueToStreamTask:
        return task

    def check(self, task: QueueToStreamTask, federation: Federation, document: Document) -> None:
        check_kind(task, "source", task.entity.alias, federation, document, log=False)
        check_kind(task, "target", task.stream.alias, federation, document, log=True)
        name = replication_subscription(task.name, task.stream.alias)
        if task.is_topic and len(name) > SUBSCRIPTION_NAME_LIMIT:
            document.fault(
                task.place,
                f"the subscription {name} has {len(name)} characters, {SUBSCRIPTION_NAME_LIMIT} at most",
                f"shorten the task's name or the alias by {len(name) - SUBSCRIPTION_NAME_LIMIT}",
            )
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            if not isinstance(other, QueueToStreamTask) or other.is_topic or task.is_topic:
                continue
            if other.entity == task.entity:
                document.fault(
                    task.places.get("queue", task.place),
                    f"queue {task.entity} is consumed by task {other.name} already: each message reaches only one of the two tasks",
                    "write another queue, or a topic",
                )

    def wanted(self, task: QueueToStreamTask) -> Iterator[tuple[str, WantedState]]:
        source = task.entity
        if task.is_topic:
            own = source_subscription(
                task.name,
                task.stream.alias,
                task.filter,
                task.lock_duration_ms,
                requires_session=in_sessions(task.ordering),
            )
            yield source.alias, TopicState(name=source.entity, subscriptions=(own,))
        else:
            # No application can receive from a queue that forwards.
            yield (
                source.alias,
                QueueState(name=source.entity, requires_session=in_sessions(task.ordering), forward_to=""),
            )
        yield (
            task.stream.alias,
            LogState(
                name=task.stream.entity,
                initial_partitions=task.initial_partitions,
                initial_replication=task.initial_replication,
            ),
        )

    def routes(self, task: QueueToStreamTask) -> Iterator[Route]:
        own = replication_subscription(task.name, task.stream.alias)
        path = f"/Subscriptions/{own}" if task.is_topic else ""
        yield Route(
            name=f"{task.name}.{task.entity.alias}.{task.stream.alias}",
            task=task.name,
            pattern=task.pattern,
            source=Endpoint(task.entity.alias, task.entity.entity + path),
            targets=(task.stream,),
            options=RouteOptions(
                ordering=task.ordering,
                start=task.start,
                filter=task.filter,
                lock_duration_ms=task.lock_duration_ms,
                refused=task.refused,
                log=LogOptions(partitioning=task.partitioning),
            ),
        )

    def audit(self, task: QueueToStreamTask) -> Iterator[Flow]:
        (route,) = self.routes(task)
        yield Flow(
            origin=task.entity,
            witness=Endpoint(task.entity.alias, ""),
            target=task.stream,
            routes=(route.name,),
            filter=task.filter,
            target_is_consumed=False,
        )
