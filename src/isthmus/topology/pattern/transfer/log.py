"""Transfers whose source or target is a log, e.g. a topic of Kafka.

What it is: the patterns that support a log at each end, the settings that a log does not support, and the wanted state of a log. What it is
not: the transfers of queues and topics (`transfer`), the patterns for logs (`stream_to_queue`, `queue_to_stream`).

A log keeps its records: it is copied and not emptied, by a consumer group instead of a subscription. It has no rules, no locks, no
dead-letter queue and no duplicate detection, and cannot contain a claim: two runs that copy one log to another share its partitions.

Invariants:
    I1. Each setting that a log does not support is a fault at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.model import LogOptions, NamespaceRef
from isthmus.topology.pattern.part.log_end import PARTITIONS, REPLICATION, STREAM_NAME
from isthmus.topology.pattern.part.replication import replication_subscription
from isthmus.topology.state import GroupState, LogState

if TYPE_CHECKING:
    from isthmus.topology.pattern.transfer.transfer import Transfer, TransferTask

__all__ = ["LOG_SETTINGS", "check_logs", "log_options", "log_states", "logs_of", "with_logs"]

PARTITIONING = Setting(
    name="partitioning",
    kind=Kind.CHOICE,
    choices=("key", "source", "single"),
    description="With a target that is a log: how the partition is chosen. `key`: the key, so that messages of one session or "
    "partition key keep their order; those without a key go to any partition. `source`: the partition at the source. "
    "`single`: the first partition, "
    "which keeps the order of all messages. Default: `source` from log to log, else `key`.",
    example="single",
)

DEAD_LETTERS = Setting(
    name="dead_letter_stream",
    kind=Kind.TEXT,
    description="With a source that is a log: stream in the source's cluster for messages that are set aside, with the reason in headers. "
    "Without it such a message blocks the route.",
    example="flights.rejected",
)

LOG_SETTINGS = (PARTITIONING, PARTITIONS, REPLICATION, DEAD_LETTERS)

# By pattern: why it cannot read a log, and the alternative. The other patterns can, if the target is a log, too.
_UNREAD = {
    "move": (
        "a log is not emptied: its records stay until their retention ends",
        "write pattern: copy, or pattern: stream-to-queue",
    ),
    "split": (
        "a log has no rules by which the filter of a target could select",
        "write a task of pattern copy for each target, with steps: [{filter: SQL}]",
    ),
}
# Settings that a source that is a log does not support.
_OF_SOURCE = {
    "filter": ("a log has no rules", "write steps: [{filter: SQL}]"),
    "action": ("a log has no rules", "write steps: [{set: SQL}]"),
    "mark": ("a log has no rules that exclude marked copies: provenance identifies them", "remove it"),
    "lock_duration": ("a log locks nothing", "remove it"),
}
# Settings that a target that is a log does not support.
_OF_TARGET = {
    "target_queue": ("a log has no queues", "write target_topic: NAME"),
    "duplicates": ("a log drops no duplicates", "remove it, or write duplicates: allow"),
    "duplicate_detection": ("a log has no duplicate detection", "remove it"),
}
# Settings that need a queue or topic at one end at least.
_OF_BOTH = {
    "audit": ("a log keeps its records for verification itself", "remove it"),
    "topic_size_gb": ("a log has a retention, and no size", "remove it"),
}


def with_logs(
    transfers: tuple[Transfer, ...], namespaces: Mapping[str, NamespaceRef], *, by_default: bool
) -> tuple[Transfer, ...]:
    """Transfers with their log ends marked; `by_default`: the target has the kind of the source."""

    def known(transfer: Transfer) -> Transfer:
        ends = (namespaces.get(each.alias) for each in (transfer.source, transfer.target))
        from_log, to_log = (each is not None and each.is_log for each in ends)
        if not from_log and not to_log:
            return transfer
        return replace(
            transfer,
            from_log=from_log,
            to_log=to_log,
            to_topic=transfer.to_topic or (to_log and by_default),
            mark="" if from_log else transfer.mark,
        )

    return tuple(map(known, transfers))


def logs_of(task: TransferTask) -> frozenset[str]:
    """The aliases of a task's namespaces that are logs."""
    sources = {each.source.alias for each in task.transfers if each.from_log}
    return frozenset(sources | {each.target.alias for each in task.transfers if each.to_log})


def log_options(task: TransferTask, transfer: Transfer) -> LogOptions:
    """The route's options for a log."""
    group = replication_subscription(task.name, transfer.feed) if transfer.from_log else ""
    by_default = "source" if transfer.from_log else "key"
    dead_letters = task.dead_letters if transfer.from_log else ""
    return LogOptions(group=group, dead_letters=dead_letters, partitioning=task.partitioning or by_default)


def log_states(task: TransferTask, transfer: Transfer) -> Iterator[tuple[str, LogState]]:
    """The wanted states of a transfer's logs."""
    source, target = transfer.source, transfer.target
    if transfer.from_log:
        group = GroupState(name=log_options(task, transfer).group, start=task.start)
        yield source.alias, LogState(name=source.entity, groups=(group,))
        if task.dead_letters:
            yield source.alias, LogState(name=task.dead_letters, initial_replication=task.initial_replication)
    if transfer.to_log:
        yield (
            target.alias,
            LogState(
                name=target.entity,
                initial_partitions=task.initial_partitions,
                initial_replication=task.initial_replication,
                like=(source.alias, source.entity) if transfer.from_log else None,
            ),
        )


def check_logs(task: TransferTask, document: Document) -> None:
    """Fault settings that a log does not support."""
    for transfer in task.transfers:
        if transfer.from_log:
            _check_source(task, transfer, document)
        for is_log, end in ((transfer.from_log, transfer.source), (transfer.to_log, transfer.target)):
            if is_log and not STREAM_NAME.fullmatch(end.entity):
                document.fault(
                    task.place,
                    f"{end.entity!r} is no name of a topic of Kafka at {end.alias}",
                    "write letters, digits, '.', '_' and '-', 249 at most",
                )
        if transfer.to_log and not transfer.to_topic and "target_queue" not in task.places:
            document.fault(task.place, f"{transfer.target} would be a queue: a log has none", "write topic: NAME")
    if any(each.from_log for each in task.transfers):
        _fault(task, _OF_SOURCE, document)
        if task.refused == "dead-letter" and "refused" in task.places and not task.dead_letters:
            document.fault(
                task.places["refused"],
                "a log has no dead-letter queue",
                "write dead_letter_stream: NAME as well, or refused: block",
            )
    elif task.dead_letters:
        document.fault(
            task.places["dead_letter_stream"], "dead_letter_stream needs a source that is a log", "remove it"
        )
    if any(each.to_log for each in task.transfers):
        _fault(task, _OF_TARGET, document)
        _check_order(task, document)
    else:
        for setting in LOG_SETTINGS[:-1]:
            if setting.name in task.places:
                document.fault(task.places[setting.name], f"{setting.name} needs a target that is a log", "remove it")
    if all(each.from_log and each.to_log for each in task.transfers):
        _fault(task, _OF_BOTH, document)


def _check_source(task: TransferTask, transfer: Transfer, document: Document) -> None:
    place = task.places.get("source", task.places.get("sources", task.place))
    if task.pattern in _UNREAD:
        why, hint = _UNREAD[task.pattern]
        document.fault(place, f"{task.pattern} from {transfer.source}: {why}", hint)
    elif not transfer.to_log:
        document.fault(
            place,
            f"{task.pattern} copies a log to another log only: {transfer.target.alias} is none",
            "write pattern: stream-to-queue",
        )
    elif not transfer.is_topic:
        document.fault(place, f"{transfer.source} would be a queue: a log has none", "write topic: NAME")


def _check_order(task: TransferTask, document: Document) -> None:
    if task.partitioning == "single" and (task.initial_partitions or 1) > 1:
        document.fault(
            task.places.get("partitions", task.place),
            "a log is not ordered over its partitions: with partitioning: single all messages go to the first one",
            "remove partitions, or write partitioning: key to keep the order of each key",
        )
    if task.partitioning == "source" and not all(each.from_log for each in task.transfers):
        document.fault(
            task.places.get("partitioning", task.place),
            "partitioning: source needs a source that is a log: a queue or topic has no partitions of that kind",
            "write partitioning: key, or single",
        )


def _fault(task: TransferTask, settings: Mapping[str, tuple[str, str]], document: Document) -> None:
    for name, (why, hint) in settings.items():
        if name not in task.places or (name == "duplicates" and task.duplicates in ("auto", "allow")):
            continue
        if name == "duplicate_detection" and not task.duplicate_detection_ms:
            continue
        document.fault(task.places[name], f"{name}: {why}", hint)
