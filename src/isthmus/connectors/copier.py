"""The copies of messages for a target: provenance, mark and policy.

What it is: the options of targets for copies, the conversion of a rewriter's results to the types of the port, and, for a target that is not
an AMQP system, the making of copies from these options. What it is not: the form in which a target stores a copy (`wrap`).

Invariants:
    I1. Without origin, target and policy a copy is its original.
    I2. No copy is made for the entity from which its message was read: with a wrong connection under an alias that entity would receive
        every message a second time, and the right namespace none. This is checked where source and target report identities.
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
        description="Alias of the target, to skip messages that have been there; empty: do not check.",
    ),
    Setting(
        name="hop_budget",
        kind=Kind.INTEGER,
        default=HOP_BUDGET,
        minimum=1,
        description="How many hops a message may have.",
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
        description="Value of the mark: `message-id` (the copy's MessageId) or `number` (1).",
    ),
    Setting(
        name="trusts_provenance",
        kind=Kind.BOOLEAN,
        default=False,
        description="Whether provenance is valid although a step of the route has changed its message.",
    ),
    Setting(
        name="policy",
        kind=Kind.TEXT,
        default="",
        description="Differences of copies from their originals, as a task of a federation file states them (JSON of a copy policy); "
        "empty: only mark, provenance and the remaining TimeToLive.",
    ),
)

LOG_COPY_SETTINGS = (
    *COPY_SETTINGS[:-1],
    replace(
        COPY_SETTINGS[-1],
        description=f"{COPY_SETTINGS[-1].description} A time to live cannot be set: a record has none.",
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
    """Removes the settings of copies from parsed options, and returns them."""
    return CopyOptions(**{setting.name: values.pop(setting.name) for setting in COPY_SETTINGS})


class SourceIsTargetError(IsthmusError):
    """A route would send messages back to the entity that it reads."""

    code = "source-is-target"

    def __init__(self, origin: str = "", target: str = "", entity: str = "") -> None:
        super().__init__("", origin=origin, target=target, entity=entity)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('entity')}': {a.get('target')} leads to the namespace of {a.get('origin')}, and its messages would return to it; correct "
            "the connection of one of them"
        )


def check_apart(
    origin: str, target: str, entity: str, *, origin_identity: str, target_identity: str, is_cased: bool = False
) -> None:
    """Checks that a target is not the entity from which the messages are read (I2).

    Args:
        origin: alias and entity, as in `MessageRewriter`; empty: unknown.
        target: alias of the target.
        entity: the target's entity.
        origin_identity: identity of the namespace from which the messages are read; empty: unknown.
        target_identity: identity of the target's system; empty: unknown.
        is_cased: whether names are case-sensitive.

    Raises:
        SourceIsTargetError: the target is that entity.
    """
    alias, _, source = origin.partition("/")
    is_one = source == entity if is_cased else source.lower() == entity.lower()
    if origin and origin_identity and origin_identity == target_identity and is_one:
        raise SourceIsTargetError(alias, target, entity)


def copies_of(
    rewriter: MessageRewriter, data: bytes, offsets: Sequence[int], now_ms: int, *, is_alone: bool = False
) -> Copies:
    """A rewriter's results as the value that `isthmus.bridge.port.Target.copies` returns."""
    if len(offsets) < 2:
        return Copies(())
    copies, stopped = rewriter.copy_all(data, list(offsets), now_ms)
    if not stopped:
        return Copies(copies, is_alone=is_alone)
    disposed = [(each.row, Disposition(each.disposition, each.reason, each.description)) for each in stopped]
    stopped_rows = {each.row for each in stopped}
    return Copies(copies, disposed, [row for row in range(len(offsets) - 1) if row not in stopped_rows], is_alone)


class Copier:
    """Makes copies.

    Args:
        options: how copies are made.
        entity: the target's entity.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
        target_identity: identity of the target's system.

    Raises:
        SourceIsTargetError: the target is the entity from which the messages are read.
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
