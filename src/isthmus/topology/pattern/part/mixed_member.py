"""Members of an all-active task that are not Service Bus: logs, e.g. topics of Kafka, and plain topics, e.g. exchanges of RabbitMQ.

What it is: their entities, the reading and writing of their routes, and the settings of the task that they do not support. These systems
have no rules that exclude copies: their routes get all messages. The route itself stops copies: its target's rewriter discards a message
with the task's mark, the message's own MessageId in it, and a provenance that proves it (`isthmus.connectors.servicebus.message.message_copy`).
Steps run before that and may change the MessageId or the body, so that a route with steps begins with a filter on the mark
(`unmarked_only`). What it is not: the pattern (`all_active`).

Invariants:
    I1. A copy that this task made is sent to no further member, and is not processed by a step a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isthmus.topology.file.document import Document
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Endpoint, Federation, LogOptions, PlainOptions, Route
from isthmus.topology.pattern.part.log_end import STREAM_NAME
from isthmus.topology.pattern.part.mark import mark_filter
from isthmus.topology.pattern.part.replication import replication_subscription
from isthmus.topology.state import AUDIT_SUFFIX, GroupState, LogState, PlainState
from isthmus.topology.step import StepDeclaration

if TYPE_CHECKING:
    from isthmus.topology.pattern.all_active import AllActiveTask

__all__ = [
    "audit_of",
    "check_members",
    "log_options",
    "member_state",
    "plain_options",
    "read_at",
    "unmarked_only",
]

# Settings that a member without rules does not support.
_UNHONOURED: Mapping[str, tuple[str, str]] = {
    "queue": ("it keeps no messages for consumers that share a subscription", "write topic: NAME"),
    "filter": ("it has no rules", "write steps: [{filter: SQL}]"),
    "mark": ("without rules, only the task's own mark identifies copies", "remove it"),
    "duplicate_detection": ("it has no history window", "remove it"),
    "canary": ("it has no subscriptions with rules", "remove it"),
}


def read_at(task: AllActiveTask, source: str, target: str) -> Endpoint:
    """The entity from which the route from one member to another receives."""
    if source in task.logs or source in task.plains:
        return Endpoint(source, task.entity)
    return Endpoint(source, f"{task.entity}/Subscriptions/{replication_subscription(task.name, target)}")


def audit_of(task: AllActiveTask, alias: str) -> str:
    """The subscription that records all messages of the topic at a plain member; empty if there is none."""
    return f"isthmus.{task.name}{AUDIT_SUFFIX}" if task.audit_ms is not None and alias in task.recorded else ""


def _kept_ms(audit_ms: int) -> int:
    return audit_ms if audit_ms < INFINITE_MS else 0


def member_state(task: AllActiveTask, alias: str) -> LogState | PlainState:
    """The entity that must exist at a member that is not Service Bus."""
    feeds = [replication_subscription(task.name, target) for target in task.members if target != alias]
    if alias in task.plains:
        audit = audit_of(task, alias)
        return PlainState(
            name=task.entity,
            is_topic=True,
            # After the others: a message that it has recorded has reached all of them.
            subscriptions=(*feeds, *([audit] if audit else ())),
            is_read=True,
            audit=audit,
            audit_ms=_kept_ms(task.audit_ms or 0) if audit else None,
        )
    return LogState(name=task.entity, groups=tuple(GroupState(name=feed, start=task.start) for feed in feeds))


def log_options(task: AllActiveTask, source: str, target: str) -> LogOptions:
    """The route's options for a log."""
    group = replication_subscription(task.name, target) if source in task.logs else ""
    return LogOptions(group=group, partitioning="source" if group and target in task.logs else "key")


def plain_options(task: AllActiveTask, source: str, target: str) -> PlainOptions:
    """The route's options for a plain topic."""
    reads = source in task.plains
    return PlainOptions(
        reads=reads,
        reads_topic=reads,
        subscription=replication_subscription(task.name, target) if reads else "",
        writes_topic=target in task.plains,
    )


def unmarked_only(route: Route, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The steps of a route, after a filter that completes the task's copies if no rule at the source excludes them.

    Args:
        route: a route of any pattern.
        steps: steps of its task, in the form of `StepDeclaration.to_text`.
    """
    options = route.options
    if not steps or not options.mark or not (options.log.group or options.plain.reads):
        return steps
    where = mark_filter(options.mark, is_number=options.mark_is_number)
    return (StepDeclaration("filter", {"where": where, "on_failure": "drop"}).to_text(), *steps)


def check_members(task: AllActiveTask, federation: Federation, document: Document) -> None:
    """Fault settings that members other than Service Bus do not support."""
    others = (*task.logs, *task.plains)
    if not others:
        return
    for name, (why, hint) in _UNHONOURED.items():
        if name in task.places and (name != "duplicate_detection" or task.duplicate_detection_ms):
            document.fault(task.places[name], f"{name} is not supported at {', '.join(others)}: {why}", hint)
    for alias in others:
        kind = KINDS[federation.namespaces[alias].kind]
        if not (kind.reads and kind.writes and kind.fans_out):
            kinds = ", ".join(each.name for each in KINDS.values() if each.reads and each.writes and each.fans_out)
            document.fault(
                task.places.get("members", task.place),
                f"{alias} is of kind {kind.name}: messages of one of its entities cannot be read by every route of the task",
                f"write a task of pattern copy or move for {alias}; members are of kind {kinds}",
            )
        if kind.is_log and not STREAM_NAME.fullmatch(task.entity):
            document.fault(
                task.places.get("topic", task.place),
                f"{task.entity!r} is no name of a stream at {alias}",
                "write letters, digits, '.', '_' and '-', 249 at most",
            )
    if len(others) > 1:
        document.warn(
            task.places.get("members", task.place),
            f"routes between {', '.join(others)} have no claim, which only Service Bus supports: two runs of {task.name} would both move "
            "their messages",
            "make sure that only one run moves it at a time",
        )
