"""Copy: every message of a topic is copied to a topic or queue of another namespace, and stays at its source.

What it is: the pattern's settings and its transfer (Microsoft Learn, "Message replication tasks patterns"). The source topic gets a
replication subscription. What it is not: a copy of a queue or of an application's subscription, whose messages each go to only one
receiver: lint reports that.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint
from isthmus.topology.pattern.part.entity import check_own_name
from isthmus.topology.pattern.transfer.setting import (
    AUDIT_SETTING,
    COMMON_TRANSFER,
    ENDS,
    RULE_SETTINGS,
    common_fields,
    read_rule,
    read_target,
)
from isthmus.topology.pattern.transfer.transfer import Transfer, TransferPattern, TransferTask

__all__ = ["Copy", "CopyTask"]


def _refused(name: str, why: str, hint: str) -> Setting:
    return Setting(name=name, kind=Kind.TEXT, description="", available=False, refusal=(why, hint))


SPEC = Spec(
    "copy",
    "Every message that is sent to a topic is copied to a topic or queue of another namespace. A queue cannot be copied: each of its "
    "messages goes to only one receiver.",
    (
        ENDS[0],
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            required=True,
            description="The topic that is copied.",
            example="flights",
        ),
        *ENDS[1:],
        _refused(
            "queue",
            "a queue cannot be copied: each of its messages goes to only one receiver",
            "write pattern: move, or let publishers send to a topic",
        ),
        _refused(
            "subscription",
            "an application's subscription cannot be copied: each of its messages goes to only one receiver",
            "remove it: the task creates its own subscription; or write pattern: move",
        ),
        *RULE_SETTINGS,
        AUDIT_SETTING,
        *COMMON_TRANSFER,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask(TransferTask):
    """A task of this pattern: one transfer."""


class Copy(TransferPattern):
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> CopyTask | None:
        topic: str = values["topic"] or ""
        check_own_name(topic, values.at("topic"), document)
        entity, to_topic = read_target(values, document, entity=topic, is_topic=True)
        rule = read_rule(name, values, document)
        fields = common_fields(name, SPEC.name, values, document)
        source, target = values["source"], values["target"]
        if not topic or not source or not target:
            return None
        transfer = Transfer(
            name=f"{source}.{target}",
            source=Endpoint(source, topic),
            target=Endpoint(target, entity),
            to_topic=to_topic,
            feed=target,
            **rule,
        )
        return CopyTask(members=tuple(dict.fromkeys((source, target))), transfers=(transfer,), **fields)
