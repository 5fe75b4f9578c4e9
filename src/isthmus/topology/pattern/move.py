"""Move: a queue or an application's subscription is emptied into a queue or topic elsewhere.

What it is: the pattern's settings, its transfer and its warning (Microsoft Learn, "Message replication tasks patterns"). A message is
settled at its source when the target has it. What it is not: a copy; applications must not consume from the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.pattern.part.entity import read_entity
from isthmus.topology.pattern.transfer.setting import AUDIT_SETTING, DRAINED, ENDS, common_fields, read_target
from isthmus.topology.pattern.transfer.transfer import Transfer, TransferPattern, TransferTask

__all__ = ["Move", "MoveTask"]

_NEEDS_RULE = (
    "a move includes every message: only a topic's subscriptions have rules",
    "write a rule at the subscription that is emptied, or pattern: copy with topic",
)


def _refused(name: str) -> Setting:
    return Setting(name=name, kind=Kind.TEXT, description="", available=False, refusal=_NEEDS_RULE)


SPEC = Spec(
    "move",
    "A queue, or a subscription of a topic, is emptied into a queue or topic elsewhere: all its messages, and all that arrive. "
    "Applications must not consume from the source.",
    (
        ENDS[0],
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue that is emptied. Exactly one of `queue` and `topic` is written.",
            example="departures",
        ),
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="The topic of the subscription that is emptied.",
            example="flights",
        ),
        Setting(
            name="subscription",
            kind=Kind.SUBSCRIPTION,
            description="With `topic`: the subscription that is emptied. Its rules are not changed.",
            example="boards",
        ),
        *ENDS[1:],
        _refused("filter"),
        _refused("action"),
        AUDIT_SETTING,
        *DRAINED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTask(TransferTask):
    """A task of this pattern: one transfer."""


class Move(TransferPattern):
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> MoveTask | None:
        entity = read_entity(name, values, document)
        is_topic = values.written("topic")
        subscription: str = values["subscription"] or ""
        if is_topic and not values.written("subscription"):
            document.fault(
                values.at("topic"),
                "a topic has no messages, its subscriptions have",
                "write subscription: NAME as well, or pattern: copy",
            )
        elif subscription and not is_topic:
            document.fault(values.at("subscription"), "subscription needs topic", "write topic: instead of queue:")
        target_entity, to_topic = read_target(values, document, entity=entity, is_topic=is_topic)
        fields = common_fields(name, SPEC.name, values, document)
        source, target = values["source"], values["target"]
        if not entity or not source or not target:
            return None
        transfer = Transfer(
            name=f"{source}.{target}",
            source=Endpoint(source, entity),
            target=Endpoint(target, target_entity),
            is_topic=is_topic,
            to_topic=to_topic,
            subscription=subscription,
        )
        return MoveTask(members=tuple(dict.fromkeys((source, target))), transfers=(transfer,), **fields)

    def check(self, task: Any, federation: Federation, document: Document) -> None:
        super().check(task, federation, document)
        read = task.transfers[0].read_at(task.name)
        document.warn(
            task.places.get("subscription", task.places.get("queue", task.place)),
            f"task {task.name} empties {read}: a message that an application consumes there is not moved",
            f"let applications consume from {task.transfers[0].target}",
        )
