"""The settings of patterns that consist of transfers, and their reading.

What it is: the settings of source and target, of filter and action, and of every such task besides its transfers. What it
is not: the transfers themselves (`isthmus.topology.pattern.transfer.transfer`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.topology.check.rule_check import check_action
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.pattern.base import COMMON, COMMON_PLANNED
from isthmus.topology.pattern.part.duplicate import DUPLICATE_DETECTION, DUPLICATES, read_duplicates
from isthmus.topology.pattern.part.entity import check_own_name
from isthmus.topology.pattern.part.log_end import check_stream
from isthmus.topology.pattern.part.mark import default_mark
from isthmus.topology.pattern.part.replication import FILTER, LOCK_DURATION, MARK, TOPIC_SIZE, check_task_filter
from isthmus.topology.pattern.part.subscription import AUDIT_DURATION, audited
from isthmus.topology.pattern.transfer.log import LOG_SETTINGS
from isthmus.topology.pattern.transfer.plain import DEAD_LETTER_QUEUE
from isthmus.topology.state import SubscriptionState

__all__ = [
    "ACTION",
    "AUDIT_SETTING",
    "COMMON_TRANSFER",
    "DRAINED",
    "ENDS",
    "RULE_SETTINGS",
    "SOURCE",
    "TARGET",
    "TARGET_ENTITIES",
    "common_fields",
    "read_rule",
    "read_target",
]

SOURCE = Setting(
    name="source",
    kind=Kind.ALIAS,
    required=True,
    description="Alias of the namespace that messages come from.",
    example="ewr",
)

TARGET = Setting(
    name="target",
    kind=Kind.ALIAS,
    required=True,
    description="Alias of the namespace that messages go to.",
    example="jfk",
)

TARGET_ENTITIES = (
    Setting(
        name="target_topic",
        kind=Kind.ENTITY,
        description="The topic that messages go to. Default, without `target_queue`: an entity of the source's kind and name.",
        example="departures",
    ),
    Setting(
        name="target_queue",
        kind=Kind.ENTITY,
        description="A queue that messages go to instead of a topic.",
        example="departures",
    ),
)

ENDS = (SOURCE, TARGET, *TARGET_ENTITIES)

ACTION = Setting(
    name="action",
    kind=Kind.SQL,
    description="SQL action on each copy.",
    example="\"SET priority = 'high'\"",
)

RULE_SETTINGS = (FILTER, ACTION, MARK)

AUDIT_SETTING = replace(
    AUDIT_DURATION,
    description="Keeps the subscription `audit` on each topic of the task, which keeps every message for this time and which no application "
    "consumes: `isthmus verify` reads it.",
)

COMMON_TRANSFER = (
    TOPIC_SIZE,
    DUPLICATES,
    DUPLICATE_DETECTION,
    replace(
        LOCK_DURATION,
        description="LockDuration of the entities that the routes "
        "read. Short, because the locks of a dead reader delay an ordered route for this long; live readers renew.",
    ),
    *LOG_SETTINGS,
    DEAD_LETTER_QUEUE,
    *COMMON,
    *COMMON_PLANNED,
)

DRAINED = tuple(
    replace(
        each,
        default="existing",
        description="The first messages of a new route: `existing`, all messages at its start. `now` is refused: a task that empties "
        "its source leaves nothing there.",
        example="existing",
    )
    if each.name == "start"
    else each
    for each in COMMON_TRANSFER
)
"""For a task that empties its source: it begins with the existing messages."""


def read_target(values: Values, document: Document, *, entity: str, is_topic: bool) -> tuple[str, bool]:
    """Name of the target, and whether it is a topic; by default those of the source."""
    if values.written("target_topic") and values.written("target_queue"):
        document.fault(values.at("target_queue"), "the task has both target_topic and target_queue", "remove one")
    for setting in ("target_topic", "target_queue"):
        if values[setting]:
            check_own_name(values[setting], values.at(setting), document)
            return values[setting], setting == "target_topic"
    return entity, is_topic


def read_rule(name: str, values: Values, document: Document) -> dict[str, Any]:
    """Filter, action and mark of the transfers of a task whose source is a topic."""
    is_number = values.written("mark")
    mark = values["mark"] or default_mark(name, ())
    check_task_filter(values["filter"] or "", values.at("filter"), document, mark=mark, is_number=is_number)
    if values["action"]:
        check_action(values["action"], values.at("action"), document)
    return {
        "filter": values["filter"] or "",
        "action": values["action"] or "",
        "mark": mark,
        "mark_is_number": is_number,
    }


def common_fields(
    name: str, pattern: str, values: Values, document: Document, subscriptions: tuple[SubscriptionState, ...] = ()
) -> dict[str, Any]:
    """The fields of a task that do not depend on its transfers."""
    check_stream("dead_letter_stream", values, document)
    duplicates, window_ms = read_duplicates(values, document)
    return {
        "name": name,
        "pattern": pattern,
        "place": values.place,
        "places": values.places,
        "subscriptions": audited(values, subscriptions, document)[0],
        "topic_size_gb": values["topic_size_gb"],
        "duplicates": duplicates,
        "duplicate_detection_ms": window_ms,
        "lock_duration_ms": values["lock_duration"],
        "start": values["start"] or "now",
        "ordering": values["ordering"],
        "refused": values["refused"],
        "partitioning": values["partitioning"] or "",
        "initial_partitions": values["partitions"],
        "initial_replication": values["replication"],
        "dead_letters": values["dead_letter_stream"] or "",
        "dead_letter_queue": values["dead_letter_queue"] or "",
    }
