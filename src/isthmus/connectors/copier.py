"""The copies of messages for a target: provenance, mark and policy.

What it is: the options that targets have for them, what a rewriter makes of messages as the port has it, and, for a target that carries no
AMQP, the making of copies from these options. What it is not: the form in which a target stores a copy (`wrap`).

Invariants:
    I1. Without origin, target and policy a copy is its original.
    I2. No copy is made for the entity that its message comes from: whoever writes a wrong connection under an alias would get every message
        a second time there, and the right namespace none. Known where the source and the target tell identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Copies
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.connectors.spec import Kind, Setting
from isthmus.errors import IsthmusError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET

__all__ = [
    "COPY_SETTINGS",
    "LOG_COPY_SETTINGS",
    "Copier",
    "CopyOptions",
    "SourceIsTargetError",
    "check_apart",
    "copies_of",
    "copy_options",
]

COPY_SETTINGS = (
    Setting(
        name="origin",
        kind=Kind.TEXT,
        default="",
        description="Alias/entity to record as a hop of provenance; empty: record none.",
    ),
    Setting(
        name="target",
        kind=Kind.TEXT,
        default="",
        description="Alias of the target, to hold back messages that have been there; empty: do not look.",
    ),
    Setting(
        name="hop_budget",
        kind=Kind.INTEGER,
        default=HOP_BUDGET,
        minimum=1,
        description="How many hops a message may make.",
    ),
    Setting(
        name="mark",
        kind=Kind.TEXT,
        default="",
        description="With origin: property that every copy is marked with; empty: none.",
    ),
    Setting(
        name="mark_value",
        kind=Kind.CHOICE,
        choices=("message-id", "number"),
        default="message-id",
        description="What the mark holds: `message-id` (the copy's MessageId) or `number` (1).",
    ),
    Setting(
        name="trusts_provenance",
        kind=Kind.BOOLEAN,
        default=False,
        description="Whether provenance counts though a step of the route has changed the message that it was made for.",
    ),
    Setting(
        name="policy",
        kind=Kind.TEXT,
        default="",
        description="What copies differ in from their originals, as a task of a federation file says it (JSON of a copy policy); "
        "empty: in nothing but mark, provenance and what is left of TimeToLive.",
    ),
)

LOG_COPY_SETTINGS = (
    *COPY_SETTINGS[:-1],
    replace(
        COPY_SETTINGS[-1],
        description=f"{COPY_SETTINGS[-1].description} A time to live that copies get cannot be given: a record has none.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """How copies are made; see `COPY_SETTINGS`."""

    origin: str
    target: str
    hop_budget: int
    mark: str
    mark_value: str
    trusts_provenance: bool
    policy: str


def copy_options(values: dict[str, Any]) -> CopyOptions:
    """Takes the settings of copies out of what was read."""
    return CopyOptions(**{setting.name: values.pop(setting.name) for setting in COPY_SETTINGS})


class SourceIsTargetError(IsthmusError):
    """A route would send messages back to the entity that it reads."""

    code = "source-is-target"

    def __init__(self, origin: str = "", target: str = "", entity: str = "") -> None:
        super().__init__("", origin=origin, target=target, entity=entity)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('entity')}': {a.get('target')} leads to the namespace of {a.get('origin')}, and its messages would come back to it; correct "
            "the connection of one of them"
        )


def check_apart(
    origin: str, target: str, entity: str, *, origin_identity: str, target_identity: str, is_cased: bool = False
) -> None:
    """See that a target is not the entity that the messages come from (I2).

    Args:
        origin: alias and entity, as in `MessageRewriter`; empty: not known.
        target: alias of the target.
        entity: of the target.
        origin_identity: of the namespace that the messages come from; empty: not known.
        target_identity: of the target's; empty: not known.
        is_cased: whether names that differ in case alone are two.

    Raises:
        SourceIsTargetError: it is.
    """
    alias, _, source = origin.partition("/")
    is_one = source == entity if is_cased else source.lower() == entity.lower()
    if origin and origin_identity and origin_identity == target_identity and is_one:
        raise SourceIsTargetError(alias, target, entity)


def copies_of(
    rewriter: MessageRewriter, data: bytes, offsets: Sequence[int], now_ms: int, *, is_alone: bool = False
) -> Copies:
    """What a rewriter makes of messages, as `isthmus.bridge.port.Target.copies` tells it."""
    if len(offsets) < 2:
        return Copies(())
    copies, held = rewriter.copy_all(data, list(offsets), now_ms)
    if not held:
        return Copies(copies, is_alone=is_alone)
    disposed = [(each.row, Disposition(each.disposition, each.reason, each.description)) for each in held]
    gone = {each.row for each in held}
    return Copies(copies, disposed, [row for row in range(len(offsets) - 1) if row not in gone], is_alone)


class Copier:
    """Makes copies.

    Args:
        options: how.
        entity: of the target.
        origin_identity: of the namespace that the messages come from; empty where it is not known.
        target_identity: of the target's system.

    Raises:
        SourceIsTargetError: the target is the entity that the messages come from.
    """

    def __init__(self, options: CopyOptions, entity: str, origin_identity: str, target_identity: str) -> None:
        check_apart(
            options.origin,
            options.target,
            entity,
            origin_identity=origin_identity,
            target_identity=target_identity,
            is_cased=True,
        )
        self._rewriter: MessageRewriter | None = None
        if options.origin or options.target or options.policy:
            self._rewriter = MessageRewriter(
                options.origin,
                options.target,
                options.hop_budget,
                origin_namespace=origin_identity if options.origin else "",
                target_namespace=target_identity,
                entity=entity,
                mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
                trusts=options.trusts_provenance,
                policy=CopyPolicy.from_text(options.policy),
            )

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """As `isthmus.bridge.port.Target.copies`."""
        if self._rewriter is None:
            return Copies([data[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)])
        return copies_of(self._rewriter, data, offsets, now_ms)
