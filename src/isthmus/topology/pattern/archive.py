"""Archive: the messages of a queue, topic or stream are stored in a table of Parquet files.

What it is: the pattern's settings, its checks, the entities that it wants and its route. The route ends in a spool, from which a
query of the run writes the table (docs/explanation/spool.md). A queue, or an application's subscription, is emptied; a topic gets a
subscription of the task; a stream is read by a consumer group of the task. What it is not: the table (`isthmus.replication.archive`).

Invariants:
    I1. One route for each task, in the order of its source, claimed at the source if that can contain a claim.
    I2. No two tasks of a file write one table or one spool, and no table is inside another one, or inside a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os.path import normpath
from pathlib import Path
from typing import Any

from isthmus.topology.check.rule_check import check_filter
from isthmus.topology.file.document import Document, Values, suggest
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import (
    TABLE,
    Endpoint,
    Federation,
    Flow,
    LogOptions,
    NamespaceRef,
    Route,
    RouteOptions,
    TableOptions,
    Task,
)
from isthmus.topology.pattern.base import COMMON_PLANNED
from isthmus.topology.pattern.part.entity import check_own_name
from isthmus.topology.pattern.part.log_end import check_stream, common, replication_subscription, source_subscription
from isthmus.topology.pattern.part.replication import FILTER, LOCK_DURATION, MAX_DELIVERY_COUNT, check_subscription_name
from isthmus.topology.pattern.part.subscription import AUDIT, audited
from isthmus.topology.pattern.transfer.setting import AUDIT_SETTING, SOURCE
from isthmus.topology.pattern.transfer.transfer import TransferTask, emptied
from isthmus.topology.state import GroupState, LogState, QueueState, SubscriptionState, TopicState, WantedState

__all__ = ["Archive", "ArchiveTask"]

_FEED = "archive"
_ENTITIES = ("queue", "topic", "stream")

SPEC = Spec(
    "archive",
    "The messages of a queue, topic or stream are stored in a table of Parquet files, each exactly once, also after kills. A queue is "
    "emptied; a topic gets a subscription of the task, and its other subscriptions keep theirs.",
    (
        SOURCE,
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue that is emptied into the table. Exactly one of `queue`, `topic` and `stream` is written.",
            example="departures",
        ),
        Setting(name="topic", kind=Kind.ENTITY, description="The topic whose messages are stored.", example="flights"),
        Setting(
            name="subscription",
            kind=Kind.SUBSCRIPTION,
            description="With `topic`: an application's subscription that is emptied into the table. Without it the task "
            "creates a subscription.",
            example="boards",
        ),
        Setting(
            name="stream",
            kind=Kind.TEXT,
            description="The stream whose records are stored, e.g. a topic of Kafka.",
            example="flights",
        ),
        Setting(
            name="table",
            kind=Kind.PATH,
            required=True,
            description="Folder of the table, relative to the federation file. If executors of Spark are on other "
            "machines, it has to be on storage that all of them share under one path.",
            example="lake/flights",
        ),
        Setting(
            name="spool",
            kind=Kind.PATH,
            description="Folder of the spool, with messages settled at the source and not in the table yet; default: `_isthmus/spool` in the "
            "table's folder.",
            example="/var/spool/isthmus/flights",
        ),
        Setting(
            name="batch_interval",
            kind=Kind.DURATION,
            default=60_000,
            minimum=1_000,
            maximum=86_400_000,
            description="Interval between two writes to the table. Each batch creates one or more files for each hour of its messages: "
            "a longer interval makes fewer and larger files.",
            example="1m",
        ),
        replace(FILTER, description="SQL condition of the messages of a topic that are stored; default: all."),
        common("start"),
        Setting(
            name="group",
            kind=Kind.TEXT,
            description="With `stream`: consumer group that stores the position of the task; default: `isthmus.TASK`.",
            example="isthmus.flights",
        ),
        LOCK_DURATION,
        AUDIT_SETTING,
        common("steps"),
        common("rate"),
        common("ledger"),
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTask(Task):
    """A task of this pattern.

    Attributes:
        entity: the queue, topic or stream.
        kind: `queue`, `topic` or `stream`.
        subscription: the application's own subscription that is emptied; empty: none.
        subscriptions: ordinary subscriptions to keep on the topic.
        table: folder of the table.
        spool: folder of the spool.
        batch_seconds: interval between two writes to the table.
        filter: condition of the messages of a topic that are stored; empty: all.
        lock_duration_ms: LockDuration of the route's source.
        start: see `RouteOptions`.
        group: consumer group of the route, with a stream.
    """

    entity: Endpoint
    kind: str
    subscription: str = ""
    subscriptions: tuple[SubscriptionState, ...] = ()
    table: str
    spool: str
    batch_seconds: float = 60.0
    filter: str = ""
    lock_duration_ms: int = 30_000
    start: str = "now"
    group: str = ""

    @property
    def claim_members(self) -> tuple[str, ...]:
        """The source, unless it is a log, which cannot contain a claim."""
        return () if self.kind == "stream" else self.members

    @property
    def read_at(self) -> Endpoint:
        """The entity from which the route receives."""
        if self.kind != "topic":
            return self.entity
        name = self.subscription or replication_subscription(self.name, _FEED)
        return Endpoint(self.entity.alias, f"{self.entity.entity}/Subscriptions/{name}")

    @property
    def empties(self) -> bool:
        """Whether it consumes the only copy of a message."""
        return self.kind == "queue" or bool(self.subscription)

    def anchored(self, directory: Path) -> ArchiveTask:
        """The same with relative file paths resolved against `directory`."""
        made = Task.anchored(self, directory)
        assert isinstance(made, ArchiveTask)
        return replace(made, table=str(directory / self.table), spool=str(directory / self.spool))


class Archive:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> ArchiveTask | None:
        kind, entity = _entity(name, values, document)
        for setting, owner in (
            ("subscription", "topic"),
            ("filter", "topic"),
            ("audit", "topic"),
            ("group", "stream"),
        ):
            if kind and values.written(setting) and kind != owner:
                document.fault(values.at(setting), f"{setting} needs {owner}", f"remove {setting}")
        if values.written("lock_duration") and kind == "stream":
            document.fault(values.at("lock_duration"), "a stream has no locks", "remove lock_duration")
        if (
            values["filter"]
            and check_filter(values["filter"], values.at("filter"), document)
            and values["subscription"]
        ):
            document.fault(
                values.at("filter"),
                "a subscription is emptied as a whole: every message in it is stored in the table",
                "remove filter, or subscription",
            )
        table, spool = (_path(each, values, document) for each in ("table", "spool"))
        if table and spool and Path(spool) == Path(table):
            document.fault(values.at("spool"), "spool is the table's own folder", "remove spool")
        if not entity or not table or not values["source"]:
            return None
        return ArchiveTask(
            name=name,
            pattern=SPEC.name,
            members=(values["source"],),
            place=values.place,
            places=values.places,
            entity=Endpoint(values["source"], entity),
            kind=kind,
            subscription=values["subscription"] or "",
            subscriptions=audited(values, (), document)[0],
            table=table,
            spool=spool or str(Path(table) / "_isthmus" / "spool"),
            batch_seconds=values["batch_interval"] / 1000,
            filter=values["filter"] or "",
            lock_duration_ms=values["lock_duration"],
            start=values["start"],
            group=values["group"] or f"isthmus.{name}" if kind == "stream" else "",
        )

    def named(self, task: ArchiveTask, namespaces: Mapping[str, NamespaceRef]) -> ArchiveTask:
        return task

    def check(self, task: ArchiveTask, federation: Federation, document: Document) -> None:
        alias = task.entity.alias
        namespace = federation.namespaces.get(alias)
        place = task.places.get("source", task.place)
        if namespace is None:
            hint = suggest(alias, sorted(federation.namespaces))
            document.fault(place, f"no namespace has the alias {alias!r}", hint)
        elif namespace.is_log != (task.kind == "stream"):
            write = "stream: NAME" if namespace.is_log else "queue: NAME, or topic: NAME"
            what = f"{alias} is of kind {namespace.kind} and has no {task.kind}"
            document.fault(task.places.get(task.kind, place), what, f"write {write}")
        if task.kind == "topic" and not task.subscription:
            check_subscription_name(task.name, _FEED, task.place, document)
        self._check_others(task, federation, document)
        if task.empties:
            document.warn(
                task.places.get("subscription", task.places.get("queue", task.place)),
                f"task {task.name} empties {task.read_at}: a message that an application consumes there is not stored",
                "write a topic without subscription to store messages that applications also get",
            )

    @staticmethod
    def _check_others(task: ArchiveTask, federation: Federation, document: Document) -> None:
        read = _folded(task.read_at)
        for other in federation.tasks.values():
            if other.ledger is not None and normpath(other.ledger.path) == normpath(task.table):
                document.fault(
                    task.places.get("table", task.place),
                    f"the table {task.table} is the ledger of task {other.name}",
                    "write another folder for one of the two",
                )
            if other.name == task.name:
                continue
            taken = emptied(other) if isinstance(other, TransferTask) else {}
            if task.empties and read in taken:
                document.fault(
                    task.place,
                    f"task {other.name} empties {task.read_at} already: each message would reach only one of the two tasks",
                    "let publishers send to a topic, or read another queue",
                )
        for other in federation.tasks.values():
            if other.name == task.name:
                return
            if not isinstance(other, ArchiveTask):
                continue
            same = read == _folded(other.read_at)
            if same and (task.empties or (task.kind == "stream" and task.group == other.group)):
                document.fault(
                    task.place,
                    f"task {other.name} reads {task.read_at} already: each message would reach only one of the two tasks",
                    "remove one of them" if task.empties else f"write group: isthmus.{task.name}",
                )
            if _is_below(task.table, other.table) or _is_below(other.table, task.table):
                document.fault(
                    task.places.get("table", task.place),
                    f"the table {task.table} is inside the table {other.table} of task {other.name}, or contains it",
                    "write a folder beside it: readers of one of them would read both",
                )
            for setting, mine, theirs in (("table", task.table, other.table), ("spool", task.spool, other.spool)):
                if normpath(mine) == normpath(theirs):
                    document.fault(
                        task.places.get(setting, task.place),
                        f"task {other.name} writes {setting} {mine} already",
                        f"write another {setting}",
                    )

    def wanted(self, task: ArchiveTask) -> Iterator[tuple[str, WantedState]]:
        name = task.entity.entity
        read: dict[str, Any] = {
            "lock_duration_ms": task.lock_duration_ms,
            "max_delivery_count": MAX_DELIVERY_COUNT,
            "requires_session": False,
            "forward_to": "",
        }
        if task.kind == "stream":
            yield task.entity.alias, LogState(name=name, groups=(GroupState(name=task.group, start=task.start),))
        elif task.kind == "queue":
            yield task.entity.alias, QueueState(name=name, partitioned=False, **read)
        else:
            own = (
                SubscriptionState(name=task.subscription, **read)
                if task.subscription
                else source_subscription(task.name, _FEED, task.filter, task.lock_duration_ms)
            )
            yield task.entity.alias, TopicState(name=name, subscriptions=(*task.subscriptions, own), partitioned=False)

    def routes(self, task: ArchiveTask) -> Iterator[Route]:
        yield Route(
            name=f"{task.name}.{task.entity.alias}.{_FEED}",
            task=task.name,
            pattern=task.pattern,
            source=task.read_at,
            targets=(Endpoint(TABLE, task.table),),
            options=RouteOptions(
                start=task.start,
                filter=task.filter,
                lock_duration_ms=task.lock_duration_ms,
                refused="block",
                log=LogOptions(group=task.group),
                table=TableOptions(spool=task.spool, batch_seconds=task.batch_seconds),
            ),
            is_claimed=task.kind != "stream",
        )

    def audit(self, task: ArchiveTask) -> Iterator[Flow]:
        (route,) = self.routes(task)
        witness = task.entity.entity if task.kind == "stream" else ""
        audit = next((each for each in task.subscriptions if each.name.lower() == AUDIT), None)
        if audit is not None and not task.subscription:
            witness = f"{task.entity.entity}/Subscriptions/{AUDIT}"
        yield Flow(
            origin=task.entity,
            witness=Endpoint(task.entity.alias, witness),
            target=Endpoint(TABLE, task.table),
            routes=(route.name,),
            filter=task.filter,
            # A message that an application's subscription did not get has a sequence number of its topic, too.
            origin_is_consumed=bool(task.subscription),
            target_is_consumed=False,
            audit_ms=(audit.default_ttl_ms or audit.initial_ttl_ms or 0) if audit is not None else 0,
        )


def _is_below(inner: str, outer: str) -> bool:
    """Whether a folder is inside another one."""
    return Path(normpath(outer)) in Path(normpath(inner)).parents


def _folded(end: Endpoint) -> tuple[str, str]:
    """The end in lower case: Service Bus compares names without case."""
    return end.alias, end.entity.lower()


def _entity(task: str, values: Values, document: Document) -> tuple[str, str]:
    """The kind and the name of the source; empty if it is faulty."""
    written = [each for each in _ENTITIES if values.written(each)]
    if not written:
        document.fault(
            values.place, f"task {task} has no queue, topic or stream", f"write queue: {task}, or topic: {task}"
        )
        return "", ""
    for extra in written[1:]:
        document.fault(values.at(extra), f"task {task} has both {written[0]} and {extra}", "remove one")
    kind = written[0]
    if kind == "stream":
        check_stream("stream", values, document)
    else:
        check_own_name(values[kind] or "", values.at(kind), document)
    return kind, values[kind] or ""


def _path(setting: str, values: Values, document: Document) -> str:
    """The path of a folder; empty if it is missing or faulty."""
    path = str(values[setting] or "")
    if "://" in path:
        document.fault(
            values.at(setting),
            f"{setting}: {path} is a URI",
            "write the path of a folder: renaming a file has to be one step, which object stores do not have",
        )
        return ""
    return path
