"""Consolidate: the topics or queues of many namespaces are merged into one.

What it is: the pattern's settings and its transfers, one for each source (Microsoft Learn, "Message replication tasks patterns"). Each
copy's provenance records its entry point. Messages of different sources are different messages, whatever their MessageIds. What it is
not: an order over all sources; the order of each source is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.pattern.part.duplicate import DUPLICATE_DETECTION, DUPLICATES_BY_ORIGIN
from isthmus.topology.pattern.part.entity import read_entity, read_members
from isthmus.topology.pattern.transfer.setting import (
    AUDIT_SETTING,
    COMMON_TRANSFER,
    RULE_SETTINGS,
    TARGET,
    TARGET_ENTITIES,
    common_fields,
    read_rule,
    read_target,
)
from isthmus.topology.pattern.transfer.transfer import Transfer, TransferPattern, TransferTask

__all__ = ["Consolidate", "ConsolidateTask"]

SPEC = Spec(
    "consolidate",
    "The messages of topics or queues of several namespaces are merged into one topic or queue. Each message records its entry point "
    "in `repl-origin`; equal MessageIds of different sources are different messages. With `queue` the sources are emptied: "
    "applications must not consume from them.",
    (
        Setting(
            name="sources",
            kind=Kind.ALIASES,
            required=True,
            description="Aliases of two or more namespaces that messages come from.",
            example="[ewr, jfk]",
        ),
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="The topic, of the same name at every source. Exactly one of `topic` and `queue` is written.",
            example="flights",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="A queue, of the same name at every source, that is emptied.",
            example="departures",
        ),
        TARGET,
        *TARGET_ENTITIES,
        *RULE_SETTINGS,
        AUDIT_SETTING,
        *(
            DUPLICATES_BY_ORIGIN if each.name == "duplicates" else each
            for each in COMMON_TRANSFER
            if each.name != DUPLICATE_DETECTION.name
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateTask(TransferTask):
    """A task of this pattern: one transfer for each source."""


class Consolidate(TransferPattern):
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> ConsolidateTask | None:
        entity = read_entity(name, values, document)
        sources = read_members(values, "sources", SPEC.name, document)
        is_topic = values.written("topic")
        if not is_topic:
            for setting in ("filter", "action", "mark"):
                if values.written(setting):
                    document.fault(
                        values.at(setting),
                        f"{setting} needs topic: a queue has no rules",
                        "remove it, or write topic: NAME",
                    )
        target_entity, to_topic = read_target(values, document, entity=entity, is_topic=is_topic)
        rule = read_rule(name, values, document) if is_topic else {}
        fields = common_fields(name, SPEC.name, values, document)
        target = values["target"]
        if not entity or not sources or not target:
            return None
        transfers = tuple(
            Transfer(
                name=f"{source}.{target}",
                source=Endpoint(source, entity),
                target=Endpoint(target, target_entity),
                is_topic=is_topic,
                to_topic=to_topic,
                feed=target if is_topic else "",
                **rule,
            )
            for source in sources
        )
        return ConsolidateTask(members=tuple(dict.fromkeys((*sources, target))), transfers=transfers, **fields)

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        super().check(task, federation, document)
        if not task.transfers[0].is_topic:
            document.warn(
                task.places.get("queue", task.place),
                f"task {task.name} empties the queue {task.transfers[0].source.entity} of every source: a message that an application "
                "consumes there is not moved",
                f"let applications consume from {task.transfers[0].target}",
            )
