"""Stream to queue: the records of a log become messages in a queue or topic.

What it is: the pattern's settings, its checks, the entities that it wants and its route (Microsoft Learn, "Message replication
tasks patterns"). The messages then have competing consumers, settlement, sessions and rules. A record's key becomes the message's
SessionId and PartitionKey; its MessageId is derived from stream, partition and offset, so that a target with duplicate detection drops
messages that are sent again after a crash. What it is not: the mapping (docs/how-to/use-kafka.md).

Invariants:
    I1. One route for each task; it is claimed at the target, since a log cannot contain a claim.
    I2. The group has its offsets before the route begins: records published after `apply` are not skipped, even with `start: now`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.kind import KINDS
from isthmus.topology.model import (
    Endpoint,
    Federation,
    Flow,
    LogOptions,
    NamespaceRef,
    PlainOptions,
    Route,
    RouteOptions,
    Task,
)
from isthmus.topology.pattern.base import COMMON_PLANNED
from isthmus.topology.pattern.ordering import partitioned
from isthmus.topology.pattern.part.log_end import PARTITIONS, REPLICATION, check_kind, check_stream, common, entity
from isthmus.topology.state import (
    GroupState,
    LogState,
    PlainState,
    QueueState,
    SubscriptionState,
    TopicState,
    WantedState,
)

__all__ = ["StreamToQueue", "StreamToQueueTask"]

# The history windows of duplicate detection that Azure Service Bus accepts.
_WINDOW_MS = (20_000, 604_800_000)
_DEFAULT_WINDOW_MS = 600_000
# The part of a stream's name that is in every MessageId (`isthmus.connectors.kafka.mapping.message_id`).
_TOLD = 100

SPEC = Spec(
    "stream-to-queue",
    "Every record of a stream, e.g. of a topic of Kafka, becomes a message in a queue or topic: the key becomes SessionId and "
    "PartitionKey, headers become application properties, and the MessageId, if the record has none, is "
    "STREAM/PARTITION/OFFSET. The order of each partition is kept.",
    (
        Setting(
            name="source",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace of the stream, of kind `kafka`, `eventhubs`, `iothub` or `rabbitmq-streams`.",
            example="hub",
        ),
        Setting(
            name="stream",
            kind=Kind.TEXT,
            required=True,
            description="The stream: a topic of Kafka, with all its partitions.",
            example="flights",
        ),
        Setting(
            name="target",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace of the queue or topic.",
            example="ewr",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue. Exactly one of `queue` and `topic` is written.",
            example="departures",
        ),
        Setting(name="topic", kind=Kind.ENTITY, description="A topic instead of a queue.", example="departures"),
        Setting(
            name="subscription",
            kind=Kind.SUBSCRIPTION,
            description="With `topic`: an ordinary subscription to keep, which gets every message and which `isthmus verify` reads.",
            example="boards",
        ),
        Setting(
            name="sessions",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether the queue, or the subscription, requires sessions; fixed when it is created. A record without key then "
            "gets one with the name of its partition, e.g. `partition-3`.",
            example="true",
        ),
        Setting(
            name="start",
            kind=Kind.CHOICE,
            choices=("now", "existing"),
            default="now",
            description="The first records of a new task. `now`: those published after `apply` created its consumer group; "
            "`existing`: also the existing ones.",
            example="existing",
        ),
        Setting(
            name="group",
            kind=Kind.TEXT,
            description="Consumer group that stores the position of the task; default: `isthmus.TASK`. No other reader "
            "may use it.",
            example="isthmus.departures",
        ),
        Setting(
            name="duplicate_detection",
            kind=Kind.DURATION,
            default=_DEFAULT_WINDOW_MS,
            minimum=_WINDOW_MS[0],
            maximum=_WINDOW_MS[1],
            may_be_off=True,
            description="History window of duplicate detection at the queue or topic: a record that is sent again after a crash has the "
            "same MessageId and is dropped. So is a record whose publisher gave it the MessageId of an earlier one: with ids that are not "
            "unique write `off`. Whether an entity has detection is fixed when it is created. With `off` a namespace of "
            "isthmus still drops it, by its origin; at Azure it appears twice.",
            example="10m",
        ),
        Setting(
            name="refused",
            kind=Kind.CHOICE,
            choices=("dead-letter", "block"),
            description="The treatment of a message that its target refuses. `block`: the route waits until the target accepts it; "
            "`dead-letter`: it is sent to `dead_letter_stream`, and the route continues. Default: `dead-letter` if "
            "`dead_letter_stream` is written, else `block`.",
            example="block",
        ),
        Setting(
            name="dead_letter_stream",
            kind=Kind.TEXT,
            description="Stream in the source's cluster for messages that are set aside, with the reason in headers: a log has no "
            "dead-letter queue.",
            example="flights.rejected",
        ),
        PARTITIONS,
        REPLICATION,
        common("ordering"),
        common("steps"),
        common("rate"),
        common("ledger"),
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamToQueueTask(Task):
    """A task of this pattern.

    Attributes:
        stream: the log that is read.
        target: the queue or topic.
        is_topic: whether it is a topic.
        subscription: with a topic, the ordinary subscription to keep; empty for none.
        sessions: whether queue or subscription requires sessions.
        detection_ms: history window of duplicate detection; 0 for off.
        initial_partitions: partitions of a stream that is created; None: one.
        initial_replication: replication factor of a stream that is created.
        group: consumer group of the route.
        start: `now` or `existing`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
        dead_letters: stream for messages that are set aside; empty for none.
        to_plain: whether the target is neither a log nor Service Bus, e.g. RabbitMQ.
    """

    stream: Endpoint
    target: Endpoint
    is_topic: bool = False
    subscription: str = ""
    sessions: bool = False
    detection_ms: int = _DEFAULT_WINDOW_MS
    initial_partitions: int | None = None
    initial_replication: int | None = None
    group: str = ""
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "block"
    dead_letters: str = ""
    to_plain: bool = False

    @property
    def claim_members(self) -> tuple[str, ...]:
        """The target, if it is Service Bus: only Service Bus can contain a claim."""
        return () if self.to_plain else (self.target.alias,)


class StreamToQueue:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> StreamToQueueTask | None:
        target = entity(name, values, document)
        check_stream("stream", values, document)
        check_stream("dead_letter_stream", values, document)
        self._check_topic(values, document)
        dead_letters = values["dead_letter_stream"] or ""
        if values["refused"] == "dead-letter" and not dead_letters:
            document.fault(
                values.at("refused"),
                "a log has no dead-letter queue",
                "write dead_letter_stream: NAME as well, or refused: block",
            )
        if dead_letters and dead_letters == values["stream"]:
            document.fault(
                values.at("dead_letter_stream"),
                "dead_letter_stream is the stream itself",
                f"write dead_letter_stream: {dead_letters}.rejected",
            )
        if not target or not all(values[each] for each in ("source", "stream", "target")):
            return None
        return StreamToQueueTask(
            name=name,
            pattern=SPEC.name,
            members=(values["source"], values["target"]),
            place=values.place,
            places=values.places,
            stream=Endpoint(values["source"], values["stream"]),
            target=Endpoint(values["target"], target),
            is_topic=values.written("topic"),
            subscription=values["subscription"] or "",
            sessions=values["sessions"],
            detection_ms=values["duplicate_detection"],
            initial_partitions=values["partitions"],
            initial_replication=values["replication"],
            group=values["group"] or f"isthmus.{name}",
            start=values["start"],
            ordering=values["ordering"],
            refused=values["refused"] or ("dead-letter" if dead_letters else "block"),
            dead_letters=dead_letters,
        )

    @staticmethod
    def _check_topic(values: Values, document: Document) -> None:
        if values.written("subscription") and not values.written("topic"):
            document.fault(values.at("subscription"), "subscription needs topic", "remove it, or write topic: NAME")
        if values["sessions"] and values.written("topic") and not values.written("subscription"):
            document.fault(
                values.at("sessions"), "a topic has no sessions, its subscriptions have", "write subscription: NAME"
            )

    def named(self, task: StreamToQueueTask, namespaces: Mapping[str, NamespaceRef]) -> StreamToQueueTask:
        target = namespaces.get(task.target.alias)
        return replace(task, to_plain=target is not None and target.is_plain)

    def check(self, task: StreamToQueueTask, federation: Federation, document: Document) -> None:
        check_kind(task, "source", task.stream.alias, federation, document, log=True)
        check_kind(task, "target", task.target.alias, federation, document, log=False, plain=True)
        if task.to_plain:
            self._check_plain(task, federation, document)
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            same = isinstance(other, StreamToQueueTask) and (other.stream, other.group) == (task.stream, task.group)
            if same:
                document.fault(
                    task.places.get("group", task.place),
                    f"group {task.group} reads {task.stream} in task {other.name} already: each record reaches only one of the two tasks",
                    f"write group: isthmus.{task.name}",
                )
            elif isinstance(other, StreamToQueueTask) and _is_taken_for_one(task, other):
                document.fault(
                    task.places.get("stream", task.place),
                    f"records of {task.stream} and of {other.stream} in task {other.name} have equal MessageIds, and the duplicate detection "
                    f"of {task.target} would drop one of each two",
                    "write another queue or topic, or duplicate_detection: off in both",
                )

    @staticmethod
    def _check_plain(task: StreamToQueueTask, federation: Federation, document: Document) -> None:
        namespace = federation.namespaces[task.target.alias]
        for name in ("subscription", "sessions", "duplicate_detection"):
            if name in task.places and (name != "duplicate_detection" or task.detection_ms):
                document.fault(
                    task.places[name],
                    f"{name} is not supported at {namespace.alias}, of kind {namespace.kind}",
                    "remove it",
                )
        if not KINDS[namespace.kind].writes:
            document.fault(
                task.places.get("target", task.place),
                f"{namespace.alias} is of kind {namespace.kind}, which cannot be a target",
                "write another alias",
            )

    def wanted(self, task: StreamToQueueTask) -> Iterator[tuple[str, WantedState]]:
        source, target = task.stream, task.target
        yield (
            source.alias,
            LogState(
                name=source.entity,
                initial_partitions=task.initial_partitions,
                initial_replication=task.initial_replication,
                groups=(GroupState(name=task.group, start=task.start),),
            ),
        )
        if task.dead_letters:
            yield source.alias, LogState(name=task.dead_letters, initial_replication=task.initial_replication)
        if task.to_plain:
            yield target.alias, PlainState(name=target.entity, is_topic=task.is_topic)
            return
        if not task.is_topic:
            yield (
                target.alias,
                QueueState(
                    name=target.entity,
                    duplicate_detection_ms=task.detection_ms or None,
                    requires_session=task.sessions or None,
                    partitioned=partitioned(task.ordering),
                ),
            )
            return
        kept = SubscriptionState(name=task.subscription, requires_session=task.sessions or None)
        yield (
            target.alias,
            TopicState(
                name=target.entity,
                subscriptions=(kept,) if task.subscription else (),
                duplicate_detection_ms=task.detection_ms or None,
                partitioned=partitioned(task.ordering),
            ),
        )

    def routes(self, task: StreamToQueueTask) -> Iterator[Route]:
        yield Route(
            name=f"{task.name}.{task.stream.alias}.{task.target.alias}",
            task=task.name,
            pattern=task.pattern,
            source=task.stream,
            targets=(task.target,),
            options=RouteOptions(
                ordering=task.ordering,
                start=task.start,
                refused=task.refused,
                duplicates="message-id" if task.detection_ms and not task.to_plain else "auto",
                plain=PlainOptions(writes_topic=task.to_plain and task.is_topic),
                log=LogOptions(group=task.group, dead_letters=task.dead_letters, keys_by_partition=task.sessions),
            ),
            claim_at=task.target.alias,
            is_claimed=not task.to_plain,
        )

    def audit(self, task: StreamToQueueTask) -> Iterator[Flow]:
        (route,) = self.routes(task)
        path = f"/Subscriptions/{task.subscription}" if task.subscription else ""
        yield Flow(
            origin=task.stream,
            witness=task.stream,
            target=Endpoint(task.target.alias, task.target.entity + path),
            routes=(route.name,),
            detection_ms=task.detection_ms,
        )


def _is_taken_for_one(first: StreamToQueueTask, second: StreamToQueueTask) -> bool:
    """Whether duplicate detection at a target that two tasks share mistakes different records for one: a MessageId is derived from stream,
    partition and offset, with only the beginning of a long stream name.
    """
    ends = [(each.target.alias, each.target.entity.lower(), each.stream.entity[:_TOLD]) for each in (first, second)]
    return (
        ends[0] == ends[1]
        and first.stream != second.stream
        and not first.to_plain
        and bool(first.detection_ms or second.detection_ms)
    )
