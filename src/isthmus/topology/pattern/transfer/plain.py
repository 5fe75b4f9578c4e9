"""Transfers whose source or target is a plain queue or topic: neither Service Bus nor a log, e.g. RabbitMQ.

What it is: the settings of a transfer that such an end does not support, and its wanted state. What it is not: the transfers of Service
Bus (`transfer`) or of logs (`transfer.log`).

A plain queue is emptied by competing consumers. A plain topic (an exchange, a multicast address) is copied from the queue that is bound
to it, or the durable subscription, which keeps the route's messages. Neither has rules, claims or duplicate detection by the namespace.

Invariants:
    I1. Each setting that such an end does not support is a fault at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Federation, NamespaceRef, PlainOptions
from isthmus.topology.pattern.part.replication import replication_subscription
from isthmus.topology.state import PlainState

if TYPE_CHECKING:
    from isthmus.topology.pattern.transfer.transfer import Transfer, TransferTask

__all__ = ["DEAD_LETTER_QUEUE", "check_ends", "check_plain", "plain_options", "plain_states", "plains_of", "with_plain"]

DEAD_LETTER_QUEUE = Setting(
    name="dead_letter_queue",
    kind=Kind.TEXT,
    description="With a source that is neither Service Bus nor a log, e.g. RabbitMQ: queue there for messages that are set aside, with the "
    "reason. Without it the source's system keeps them if it has dead-letter queues; otherwise such a message blocks the route.",
    example="orders-rejected",
)

_OF_SOURCE = {
    "filter": ("it has no rules", "write steps: [{filter: SQL}]"),
    "action": ("it has no rules", "write steps: [{set: SQL}]"),
    "mark": ("it has no rules that exclude marked copies: provenance identifies them", "remove it"),
    "lock_duration": ("it locks received messages until the connection ends", "remove it"),
    "subscription": ("it has no subscriptions of applications", "write queue: NAME"),
    "canary": ("a canary needs subscriptions with rules", "remove it"),
}
_OF_TARGET = {
    "duplicate_detection": ("it has no history window that the task could set", "remove it"),
}
_OF_BOTH = {
    "audit": ("it has no subscription for verification", "remove it"),
    "topic_size_gb": ("the task does not set its size", "remove it"),
}


def with_plain(transfers: tuple[Transfer, ...], namespaces: Mapping[str, NamespaceRef]) -> tuple[Transfer, ...]:
    """Transfers with their plain ends marked."""

    def known(transfer: Transfer) -> Transfer:
        ends = (namespaces.get(each.alias) for each in (transfer.source, transfer.target))
        from_plain, to_plain = (each is not None and each.is_plain for each in ends)
        mark = "" if from_plain else transfer.mark
        source = namespaces.get(transfer.source.alias)
        keeps = not from_plain or source is None or source.keeps_rejected
        return replace(transfer, from_plain=from_plain, to_plain=to_plain, mark=mark, keeps_rejected=keeps)

    return tuple(map(known, transfers))


def plains_of(task: TransferTask) -> frozenset[str]:
    """The aliases of a task's plain namespaces."""
    sources = {each.source.alias for each in task.transfers if each.from_plain}
    return frozenset(sources | {each.target.alias for each in task.transfers if each.to_plain})


def plain_options(task: TransferTask, transfer: Transfer) -> PlainOptions:
    """The route's options for a plain end."""
    reads_topic = transfer.from_plain and transfer.is_topic
    return PlainOptions(
        reads=transfer.from_plain,
        reads_topic=reads_topic,
        subscription=replication_subscription(task.name, transfer.feed) if reads_topic else "",
        dead_letters=task.dead_letter_queue if transfer.from_plain else "",
        writes_topic=transfer.to_plain and transfer.to_topic,
    )


def plain_states(task: TransferTask, transfer: Transfer) -> Iterator[tuple[str, PlainState]]:
    """The wanted states of a transfer's plain ends."""
    if transfer.from_plain:
        subscription = plain_options(task, transfer).subscription
        yield (
            transfer.source.alias,
            PlainState(
                name=transfer.source.entity,
                is_topic=transfer.is_topic,
                subscriptions=(subscription,) if subscription else (),
                is_read=True,
            ),
        )
        if task.dead_letter_queue:
            yield transfer.source.alias, PlainState(name=task.dead_letter_queue)
    if transfer.to_plain:
        yield transfer.target.alias, PlainState(name=transfer.target.entity, is_topic=transfer.to_topic)


def check_ends(task: TransferTask, federation: Federation, document: Document) -> None:
    """Fault a source that cannot be read, and a target that cannot be written to."""
    for transfer in task.transfers:
        for end, setting, can in ((transfer.source, "source", "reads"), (transfer.target, "target", "writes")):
            namespace = federation.namespaces.get(end.alias)
            if namespace is None or getattr(KINDS[namespace.kind], can):
                continue
            kinds = " or ".join(kind.name for kind in KINDS.values() if getattr(kind, can))
            document.fault(
                task.places.get(setting, task.place),
                f"{end.alias} is of kind {namespace.kind}, which cannot be a {setting}",
                f"write the alias of a namespace of kind {kinds}",
            )


def _check_dead_letters(task: TransferTask, federation: Federation, document: Document) -> None:
    """Fault a dead-letter queue that no source supports, and setting messages aside where nothing keeps them."""
    sources = [each for each in task.transfers if each.from_plain]
    if task.dead_letter_queue and not sources:
        document.fault(
            task.places["dead_letter_queue"],
            "dead_letter_queue needs a source that is neither Service Bus nor a log",
            "remove it",
        )
    for transfer in sources:
        namespace = federation.namespaces[transfer.source.alias]
        kind = KINDS[namespace.kind]
        by = f"{kind.dead_letters_by}: true in the namespace if its queues keep rejected messages"
        if task.dead_letter_queue and not kind.takes_dead_letters:
            hint = f"write {by}" if kind.dead_letters_by else "remove it"
            document.fault(
                task.places["dead_letter_queue"], f"{namespace.alias} does not support dead_letter_queue", hint
            )
        elif task.dead_letter_queue == transfer.source.entity:
            document.fault(
                task.places["dead_letter_queue"], "dead_letter_queue is the source itself", "write another name"
            )
        elif task.refused == "dead-letter" and "refused" in task.places and not task.can_set_aside(transfer):
            document.fault(
                task.places["refused"],
                f"nothing declares that {namespace.alias} keeps messages that are set aside: it would drop them",
                f"write dead_letter_queue: NAME as well, or {by}, or refused: block"
                if kind.takes_dead_letters
                else f"write {by}, or refused: block",
            )


def check_plain(task: TransferTask, federation: Federation, document: Document) -> None:
    """Fault settings that a plain end does not support."""
    _check_dead_letters(task, federation, document)
    if any(each.from_plain for each in task.transfers):
        _fault(task, "source", _OF_SOURCE, document)
    for transfer in task.transfers:
        if transfer.from_plain and transfer.to_log and not transfer.to_topic:
            continue  # reported by the checks of logs
        if transfer.from_log and transfer.to_plain:
            document.fault(
                task.places.get("target", task.place),
                f"{task.pattern} copies a log to another log only: {transfer.target.alias} is none",
                "write pattern: stream-to-queue",
            )
    if any(each.to_plain for each in task.transfers):
        _fault(task, "target", _OF_TARGET, document)
    if all(each.from_plain and each.to_plain for each in task.transfers):
        _fault(task, "source", _OF_BOTH, document)


def _fault(task: TransferTask, which: str, settings: Mapping[str, tuple[str, str]], document: Document) -> None:
    aliases = ", ".join(sorted(plains_of(task)))
    for name, (why, hint) in settings.items():
        if name not in task.places or (name == "duplicate_detection" and not task.duplicate_detection_ms):
            continue
        document.fault(task.places[name], f"{name} is not supported at the {which}, {aliases}: {why}", hint)
