"""Transfers: one message's path from one entity to another, of which copy, move, consolidate, fan-out and split consist.

What it is: a task as a tuple of transfers, and the common consequences for each such pattern: the entities that must exist,
the routes, the comparisons of verification, and the checks between tasks. What it is not: the settings from which a pattern builds its
transfers.

Invariants:
    I1. Each transfer is one route with one source and one target.
    I2. A transfer that a replication subscription of a topic feeds has a mark, and its rule excludes messages with it: no message
        passes the same transfer twice, whatever path leads back.
    I3. A transfer that consumes the only copy of a message has no mark, and a message that would return to an entity that it
        has been in is dead-lettered and not completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isthmus.message.copy_policy import CopyPolicy
from isthmus.rules import Filter, parse_action
from isthmus.rules.analysis.analysis import properties
from isthmus.topology.file.document import Document, suggest
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.pattern.ordering import in_sessions, partitioned
from isthmus.topology.pattern.part.duplicate import DETECTION_WINDOW_MS
from isthmus.topology.pattern.part.log_end import check_written
from isthmus.topology.pattern.part.mark import default_mark
from isthmus.topology.pattern.part.replication import (
    MAX_DELIVERY_COUNT,
    RULE,
    TOPIC_SIZE_GB,
    check_subscription_name,
    replication_rule,
    replication_state,
    replication_subscription,
)
from isthmus.topology.pattern.part.subscription import AUDIT
from isthmus.topology.pattern.transfer.log import check_logs, log_options, log_states, logs_of, with_logs
from isthmus.topology.pattern.transfer.plain import (
    check_ends,
    check_plain,
    plain_options,
    plain_states,
    plains_of,
    with_plain,
)
from isthmus.topology.state import EntityState, QueueState, RuleState, SubscriptionState, TopicState, WantedState

__all__ = ["Transfer", "TransferPattern", "TransferTask", "emptied", "flow", "addresses_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One path from a source to a target.

    Attributes:
        name: the end of the route's name, e.g. `ewr.jfk`.
        source: the queue or topic that messages enter.
        target: the queue or topic that they are sent to.
        is_topic: whether the source is a topic.
        to_topic: whether the target is a topic.
        subscription: the application's own subscription that is emptied; empty: none.
        feed: ending of the name of the task's own subscription that feeds the route, e.g. `jfk`; empty: none.
        through: topic of the task that the source, a queue, forwards into; empty: none.
        filter: condition of the messages; empty: all.
        action: SQL action on the copy.
        mark: property that copies carry and that the rule excludes; empty: none.
        mark_is_number: whether its value is the number 1; otherwise their MessageId.
        from_log: whether the source is a log, e.g. a topic of Kafka.
        to_log: whether the target is a log.
        from_plain: whether the source is neither a log nor Service Bus, e.g. RabbitMQ.
        to_plain: whether the target is neither.
        keeps_rejected: whether the source's system keeps messages that are set aside without a configured queue.
        goes_alone: whether a message of this transfer belongs to no other transfer of the task.
    """

    name: str
    source: Endpoint
    target: Endpoint
    is_topic: bool = True
    to_topic: bool = True
    subscription: str = ""
    feed: str = ""
    through: str = ""
    filter: str = ""
    action: str = ""
    mark: str = ""
    mark_is_number: bool = False
    from_log: bool = False
    to_log: bool = False
    from_plain: bool = False
    to_plain: bool = False
    keeps_rejected: bool = True
    goes_alone: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether the original stays at the source."""
        return bool(self.mark) or self.from_log or (self.from_plain and self.is_topic)

    def rule(self) -> RuleState:
        """The one rule of the subscription that feeds it."""
        if not self.mark:
            return RuleState(RULE, self.filter or "1 = 1", self.action)
        return replication_rule(self.mark, self.filter, self.action, is_number=self.mark_is_number)

    def read_at(self, task: str) -> Endpoint:
        """The entity from which the route receives."""
        if self.from_log or self.from_plain:
            return self.source
        name = replication_subscription(task, self.feed) if self.feed else self.subscription
        entity = self.through or self.source.entity
        return Endpoint(self.source.alias, f"{entity}/Subscriptions/{name}" if name else entity)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTask(Task):
    """A task that consists of transfers.

    Attributes:
        transfers: its transfers.
        subscriptions: ordinary subscriptions to keep on each topic.
        topic_size_gb: size of topics that are created.
        duplicates: the treatment of a copy that is sent again: `auto`, `origin`, `message-id` or `allow`.
        duplicate_detection_ms: history window of `message-id`; 0 for off.
        lock_duration_ms: LockDuration of the entities that the routes read.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
        partitioning: with a target that is a log: see `LogOptions`; empty: by the source's kind.
        initial_partitions: partitions of a log that is created; None: those of the copied log, or one.
        initial_replication: replication factor of a log that is created.
        dead_letters: with a source that is a log: log for messages that are set aside there; empty: it blocks the route.
        dead_letter_queue: the same with a source that is neither a log nor Service Bus; empty: the default of the source's system, or it blocks.
    """

    transfers: tuple[Transfer, ...]
    subscriptions: tuple[SubscriptionState, ...] = ()
    topic_size_gb: int = TOPIC_SIZE_GB
    duplicates: str = "auto"
    duplicate_detection_ms: int = 0
    lock_duration_ms: int = 30_000
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "dead-letter"
    partitioning: str = ""
    initial_partitions: int | None = None
    initial_replication: int | None = None
    dead_letters: str = ""
    dead_letter_queue: str = ""

    @property
    def claim_members(self) -> tuple[str, ...]:
        """All members that are Service Bus: only these can contain a claim."""
        others = logs_of(self) | plains_of(self)
        return tuple(each for each in self.members if each not in others)

    def route_name(self, transfer: Transfer) -> str:
        """The name of a transfer's route."""
        return f"{self.name}.{transfer.name}"

    def can_set_aside(self, transfer: Transfer) -> bool:
        """Whether the source of a transfer can keep messages that are set aside."""
        if transfer.from_log:
            return bool(self.dead_letters)
        return transfer.keeps_rejected or bool(self.dead_letter_queue)


class TransferPattern:
    """The common base of patterns that consist of transfers."""

    # Patterns whose target has the kind of the source, unless the file declares otherwise.
    like_source = ("copy", "move", "consolidate")

    def named(self, task: Any, namespaces: Mapping[str, NamespaceRef]) -> Task:
        addresses = addresses_of(namespaces, task.members)
        marked = tuple(
            each if not each.mark or each.mark_is_number else replace(each, mark=default_mark(task.name, addresses))
            for each in task.transfers
        )
        by_default = "target_queue" not in task.places and task.pattern in self.like_source
        transfers = with_plain(with_logs(marked, namespaces, by_default=by_default), namespaces)
        made: TransferTask = replace(task, transfers=transfers)
        return made

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        for alias in dict.fromkeys(task.members):
            place = task.places.get(f"alias {alias}")
            if place is not None and alias not in federation.namespaces:
                document.fault(
                    place, f"no namespace has the alias {alias!r}", suggest(alias, sorted(federation.namespaces))
                )
        for transfer in task.transfers:
            if transfer.feed and not (transfer.from_log or transfer.from_plain):
                check_subscription_name(task.name, transfer.feed, task.place, document)
            if _same(transfer.source, transfer.target):
                document.fault(task.place, f"{transfer.source} is both source and target", "write another target")
        check_ends(task, federation, document)
        check_logs(task, document)
        for alias in dict.fromkeys(each.target.alias for each in task.transfers):
            check_written(task, alias, federation, document)
        check_plain(task, federation, document)
        _check_emptied(task, federation, document)

    def wanted(self, task: Any) -> Iterator[tuple[str, WantedState]]:
        for transfer in task.transfers:
            if not (transfer.from_log or transfer.from_plain):
                yield from _source(task, transfer)
            yield from log_states(task, transfer)
            yield from plain_states(task, transfer)
            if not (transfer.to_log or transfer.to_plain):
                yield transfer.target.alias, _target(task, transfer)

    def routes(self, task: Any) -> Iterator[Route]:
        for transfer in task.transfers:
            yield Route(
                name=task.route_name(transfer),
                task=task.name,
                pattern=task.pattern,
                source=transfer.read_at(task.name),
                targets=(transfer.target,),
                options=RouteOptions(
                    ordering=task.ordering,
                    start=task.start,
                    mark=transfer.mark,
                    mark_is_number=transfer.mark_is_number,
                    duplicates=task.duplicates,
                    filter=transfer.filter,
                    lock_duration_ms=task.lock_duration_ms,
                    refused=task.refused if task.can_set_aside(transfer) else "block",
                    policy=CopyPolicy(dead_letters_returning=not transfer.is_copy),
                    log=log_options(task, transfer),
                    plain=plain_options(task, transfer),
                ),
                claim_at=_claim_at(transfer),
                is_claimed=_can_hold_claim(transfer, from_source=True) or _can_hold_claim(transfer, from_source=False),
            )

    def audit(self, task: Any) -> Iterator[Flow]:
        for transfer in task.transfers:
            yield flow(task, (transfer,))


def flow(task: TransferTask, path: tuple[Transfer, ...]) -> Flow:
    """The messages of the first transfer's source that have to arrive at the target of the last."""
    first, last = path[0], path[-1]
    whole = next((each.name for each in task.subscriptions if not each.rules), "")
    # A filter of the audit subscription would hide missing messages.
    audit = next((each for each in task.subscriptions if each.name.lower() == AUDIT and not each.rules), None)
    name = AUDIT if audit is not None else whole
    witness = f"{first.source.entity}/Subscriptions/{name}" if name and first.is_topic else ""
    if first.from_log:
        witness = first.source.entity
    if first.from_plain:
        witness = ""
    target = last.target.entity
    if last.to_topic and not (last.to_log or last.to_plain):
        target = f"{target}/Subscriptions/{name}" if name else ""
    filters = list(dict.fromkeys(each.filter for each in path if each.filter))
    return Flow(
        origin=first.source,
        witness=Endpoint(first.source.alias, witness),
        target=Endpoint(last.target.alias, target),
        routes=tuple(task.route_name(each) for each in path),
        filter=filters[0] if len(filters) == 1 else " AND ".join(f"({each})" for each in filters),
        # A message that an application's subscription did not get has a sequence number of its topic, too.
        origin_is_consumed=name != AUDIT
        and not first.from_log
        and (bool(witness or first.subscription) or not last.to_log),
        target_is_consumed=not last.to_log and (not last.to_topic or name != AUDIT),
        changes=any(each.action for each in path),
        drops=any(_decides_again(each, later) for at, each in enumerate(path) for later in path[at + 1 :]),
        audit_ms=(audit.default_ttl_ms or audit.initial_ttl_ms or 0) if audit is not None else 0,
        detection_ms=task.duplicate_detection_ms,
        goes_alone=last.goes_alone,
    )


def _decides_again(transfer: Transfer, later: Transfer) -> bool:
    """Whether the action of a transfer may change a property that the filter of a later one reads."""
    if not transfer.action or not later.filter:
        return False
    targets = (each.target for each in parse_action(transfer.action).statements)
    read = {(each.scope, each.name.lower()) for each in properties(Filter(later.filter).tree)}
    return any((each.scope, each.name.lower()) in read for each in targets)


def addresses_of(namespaces: Mapping[str, NamespaceRef], aliases: tuple[str, ...]) -> list[tuple[str, str]]:
    """Alias, and host or reference to the connection, of each namespace, as the hash of a mark needs them."""
    found = [namespaces[alias] for alias in dict.fromkeys(aliases) if alias in namespaces]
    return [(each.alias, str(each.connection) if each.connection else each.host) for each in found]


def _can_hold_claim(transfer: Transfer, *, from_source: bool) -> bool:
    """Whether the namespace of the source, or of the target, can contain the claim of a route: Service Bus can."""
    return not ((transfer.from_log or transfer.from_plain) if from_source else (transfer.to_log or transfer.to_plain))


def _claim_at(transfer: Transfer) -> str:
    """The target's alias if the source cannot contain a claim."""
    return "" if _can_hold_claim(transfer, from_source=True) else transfer.target.alias


def _same(first: Endpoint, second: Endpoint) -> bool:
    return first.alias == second.alias and first.entity.lower() == second.entity.lower()


def emptied(task: Task) -> dict[tuple[str, str], Endpoint]:
    """The entities from which a task consumes the only copy."""
    if not isinstance(task, TransferTask):
        return {}
    ends = [
        each.source if each.through else each.read_at(task.name)
        for each in task.transfers
        if each.through or not each.feed
    ]
    return {(end.alias, end.entity.lower()): end for end in ends}


def _check_emptied(task: TransferTask, federation: Federation, document: Document) -> None:
    mine = emptied(task)
    for other in federation.tasks.values():
        if other.name == task.name:
            break
        for key in mine.keys() & emptied(other).keys():
            document.fault(
                task.place,
                f"task {other.name} empties {mine[key]} already: each message would reach only one of the two tasks",
                "write one task of pattern split with both targets",
            )


def _source(task: TransferTask, transfer: Transfer) -> Iterator[tuple[str, EntityState]]:
    alias, name = transfer.source.alias, transfer.source.entity
    feed: tuple[SubscriptionState, ...] = ()
    if transfer.feed:
        fed = replication_subscription(task.name, transfer.feed)
        is_in_sessions = in_sessions(task.ordering)
        feed = (replication_state(fed, transfer.rule(), task.lock_duration_ms, requires_session=is_in_sessions),)
    read: dict[str, Any] = {
        "lock_duration_ms": task.lock_duration_ms,
        "max_delivery_count": MAX_DELIVERY_COUNT,
        "requires_session": in_sessions(task.ordering),
        "forward_to": "",
    }
    if transfer.is_topic:
        if transfer.subscription:
            feed = (SubscriptionState(name=transfer.subscription, **read),)
        yield alias, _topic(task, name, (*task.subscriptions, *feed))
    elif transfer.through:
        yield alias, _topic(task, transfer.through, feed)
        yield (
            alias,
            QueueState(
                name=name, requires_session=False, forward_to=transfer.through, partitioned=partitioned(task.ordering)
            ),
        )
    else:
        yield alias, QueueState(name=name, partitioned=partitioned(task.ordering), **read)


def _topic(task: TransferTask, name: str, subscriptions: tuple[SubscriptionState, ...]) -> TopicState:
    return TopicState(
        name=name,
        subscriptions=subscriptions,
        initial_size_megabytes=task.topic_size_gb * 1024,
        partitioned=partitioned(task.ordering),
    )


def _target(task: TransferTask, transfer: Transfer) -> EntityState:
    detection: dict[str, Any] = {
        "duplicate_detection_ms": task.duplicate_detection_ms,
        "keyless_detection_ms": DETECTION_WINDOW_MS if task.duplicates == "origin" else None,
    }
    if transfer.to_topic:
        return replace(_topic(task, transfer.target.entity, task.subscriptions), **detection)
    return QueueState(
        name=transfer.target.entity,
        requires_session=True if in_sessions(task.ordering) else None,
        initial_size_megabytes=task.topic_size_gb * 1024,
        partitioned=partitioned(task.ordering),
        **detection,
    )
