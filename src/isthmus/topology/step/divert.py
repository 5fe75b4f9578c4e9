"""The setting `divert_to` of a step: the entity for messages that the step fails on, with `on_failure: divert`.

What it is: the setting, its reading, and the entity that it names, as a value. What it is not: the checks against the rest of the file
(`isthmus.topology.divert`), or the sending (`isthmus.bridge.host.sender.routes`). docs/explanation/lease.md, "Diverted messages".

Invariants:
    I1. `divert_to` and `on_failure: divert` are written together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.step.declaration import StepDeclaration

__all__ = ["DIVERT", "DIVERT_SPEC", "DIVERT_TO", "DivertTo", "divert_of", "diverts_of", "read_divert"]

DIVERT = "divert"
"""The value of `on_failure`."""

DIVERT_SPEC = Spec(
    "divert_to",
    "An entity for messages that a step fails on. `apply` creates a queue or topic that does not exist.",
    (
        Setting(
            name="to",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the entity's namespace.",
            example="jfk",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue. Exactly one of `queue` and `topic` is written.",
            example="flights-invalid",
        ),
        Setting(name="topic", kind=Kind.ENTITY, description="The topic, or the stream of a log.", example="invalid"),
    ),
)

DIVERT_TO = Setting(
    name="divert_to",
    kind=Kind.MAPPING,
    inner=DIVERT_SPEC,
    description="With `on_failure: divert`: the entity that such a message is sent to, as `to` (an alias) and `queue` or "
    "`topic`. It must be neither a "
    "source nor a target of the task.",
    example="{to: jfk, queue: flights-invalid}",
)


@dataclass(frozen=True, slots=True)
class DivertTo:
    """An entity that messages are diverted to.

    Attributes:
        alias: alias of its namespace.
        entity: its name.
        is_topic: whether it is a topic or a log.
        kind: kind of its namespace; empty if unknown.
    """

    alias: str
    entity: str
    is_topic: bool = False
    kind: str = ""

    @property
    def name(self) -> str:
        """Alias and entity, as rows name it."""
        return f"{self.alias}/{self.entity}"


def read_divert(values: Values, document: Document) -> dict[str, str] | None:
    """The value of `divert_to` as plain values; None if it is missing or faulty.

    Args:
        values: values of the step.
        document: receives the faults.
    """
    node = values["divert_to"]
    is_diverting = values["on_failure"] == DIVERT
    if not values.written("divert_to"):
        if is_diverting:
            document.fault(
                values.at("on_failure"),
                "on_failure: divert has no divert_to",
                f"write divert_to: {DIVERT_TO.example}",
            )
        return None
    if not is_diverting and "on_failure" not in values.faulty:
        document.fault(
            values.at("divert_to"), "divert_to needs on_failure: divert", "write on_failure: divert, or remove it"
        )
    read = document.settings(node, DIVERT_SPEC, "divert_to")
    if read.faulty or not read["to"]:
        return None
    if bool(read.written("topic")) == bool(read.written("queue")):
        both = "both topic and queue" if read.written("topic") else "neither topic nor queue"
        document.fault(read.place, f"divert_to has {both}", "write queue: NAME, or topic: NAME")
        return None
    return {name: read[name] for name in ("to", "queue", "topic") if read[name]}


def divert_of(settings: Mapping[str, Any], kinds: Mapping[str, str] | None = None) -> DivertTo | None:
    """The entity to which a step with these settings diverts; None if it does not.

    Args:
        settings: settings of the step.
        kinds: kinds of namespaces, by alias.
    """
    target = settings.get("divert_to")
    if settings.get("on_failure") != DIVERT or not target:
        return None
    topic = target.get("topic", "")
    return DivertTo(target["to"], topic or target["queue"], bool(topic), (kinds or {}).get(target["to"], ""))


def diverts_of(steps: Iterable[StepDeclaration], kinds: Mapping[str, str] | None = None) -> tuple[DivertTo, ...]:
    """The entities that steps divert to, each once."""
    return tuple(dict.fromkeys(found for step in steps if (found := divert_of(step.settings, kinds)) is not None))
