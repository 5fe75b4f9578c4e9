"""The common parts of the patterns between logs and Service Bus.

What it is: the settings of an end that is a log, e.g. a topic of Kafka, of the queue or topic at the other end, and their checks. What it
is not: a pattern (`stream_to_queue`, `queue_to_stream`).
"""

from __future__ import annotations

import re

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Federation, Task
from isthmus.topology.pattern.base import COMMON
from isthmus.topology.state import RuleState, SubscriptionState

__all__ = [
    "PARTITIONS",
    "REPLICATION",
    "STREAM_NAME",
    "check_kind",
    "check_stream",
    "check_written",
    "common",
    "entity",
    "replication_subscription",
    "source_subscription",
]

# "Topic names", Apache Kafka: these characters are allowed, at most 249, and neither "." nor "..".
STREAM_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_OWN = "isthmus."
# The largest value of Service Bus. An unavailable target must not cause dead letters.
_MAX_DELIVERY_COUNT = 2000

PARTITIONS = Setting(
    name="partitions",
    kind=Kind.INTEGER,
    minimum=1,
    maximum=10_000,
    description="The number of partitions with which `apply` creates the stream; default 1. An existing stream keeps its number.",
    example="3",
)
REPLICATION = Setting(
    name="replication",
    kind=Kind.INTEGER,
    minimum=1,
    maximum=100,
    description="The replication factor of a stream that `apply` creates; default: that of the cluster.",
    example="3",
)


def common(name: str) -> Setting:
    """A setting that tasks of every pattern share."""
    return next(each for each in COMMON if each.name == name)


def check_stream(setting: str, values: Values, document: Document) -> None:
    """Fault a stream's name that Kafka does not accept."""
    name = values[setting]
    if name and not STREAM_NAME.fullmatch(name):
        document.fault(
            values.at(setting),
            f"{setting}: {name!r} is no name of a topic of Kafka",
            "write letters, digits, '.', '_' and '-', 249 at most",
        )


def entity(task: str, values: Values, document: Document) -> str:
    """The queue or topic at Service Bus that a task names; empty if it is faulty."""
    if values.written("topic") and values.written("queue"):
        document.fault(values.at("queue"), f"task {task} has both topic and queue", "remove one")
    elif not values.written("topic") and not values.written("queue"):
        document.fault(values.place, f"task {task} has no queue", f"write queue: {task}, or topic: {task}")
    name = str(values["queue"] or values["topic"] or "")
    if name.lower().startswith(_OWN):
        place = values.at("queue" if values["queue"] else "topic")
        document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")
    return name


def check_kind(
    task: Task, setting: str, alias: str, federation: Federation, document: Document, *, log: bool, plain: bool = False
) -> None:
    """Fault a namespace that is a log if the task needs none, and vice versa.

    Args:
        task: the task.
        setting: the setting that names the namespace.
        alias: alias of the namespace.
        federation: the file.
        document: receives the fault.
        log: whether a log is needed.
        plain: whether it may be neither a log nor Service Bus.
    """
    namespace = federation.namespaces.get(alias)
    if setting == "target" and log:
        check_written(task, alias, federation, document)
    if namespace is None or (namespace.is_log if log else namespace.is_service_bus or (plain and namespace.is_plain)):
        return
    kinds = [
        kind for kind in KINDS.values() if (kind.is_log if log else not kind.is_log and (plain or not kind.is_plain))
    ]
    needs = "a log" if log else "a namespace with queues and topics"
    hint = f"write the alias of a namespace of kind {' or '.join(kind.name for kind in kinds)}"
    if namespace.is_plain and not log:
        hint += ", or pattern: move with target_topic: STREAM"
    document.fault(
        task.places.get(setting, task.place),
        f"{task.pattern} needs {needs} as {setting}: {alias} is of kind {namespace.kind}",
        hint,
    )


def check_written(task: Task, alias: str, federation: Federation, document: Document) -> None:
    """Fault a target of a kind that can only be read."""
    namespace = federation.namespaces.get(alias)
    if namespace is not None and namespace.is_log and not KINDS[namespace.kind].writes:
        document.fault(
            task.places.get("target", task.place),
            f"{alias} is of kind {namespace.kind}, which cannot be a target",
            "write another alias",
        )


def replication_subscription(task: str, target: str) -> str:
    """Name of the subscription that feeds the route to a target."""
    return f"isthmus.{task}.{target}"


def source_subscription(
    task: str, target: str, condition: str, lock_duration_ms: int, *, requires_session: bool = False
) -> SubscriptionState:
    """The subscription of a topic that feeds the route."""
    return SubscriptionState(
        name=replication_subscription(task, target),
        rules=(RuleState("isthmus", condition or "1 = 1"),),
        lock_duration_ms=lock_duration_ms,
        max_delivery_count=_MAX_DELIVERY_COUNT,
        auto_delete_on_idle_ms=INFINITE_MS,
        requires_session=requires_session,
        forward_to="",
    )
