"""The statuses that a phase of a fail-over needs for the entities of a member.

What it is: entities in, those that need another status out, each with the new one. Pure. What it is not: the setting
(`isthmus.pairing.status`), or the order in which entities are stopped (`isthmus.pairing.failover.stop_layer`).

Invariants:
    I1. An entity that has the status already is not set.
    I2. A member that was not fenced keeps the statuses of its own entities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.topology.pair.description import CLOSED, TAKES_NONE, Description, Key, kept

__all__ = ["GIVES_NONE", "to_close", "to_give", "to_open", "to_stop", "to_take"]

GIVES_NONE = frozenset({"ReceiveDisabled", "Disabled"})
_STOPPED: Mapping[str, str] = {"Active": "SendDisabled"}


def to_stop(layer: Iterable[Description]) -> list[tuple[Description, str]]:
    """Statuses with which a layer takes no messages; receivers continue."""
    return [(each, _STOPPED.get(each.status, "Disabled")) for each in layer if each.status not in TAKES_NONE]


def to_give(existing: Mapping[Key, Description], paths: Collection[str]) -> list[tuple[Description, str]]:
    """Statuses with which the messages at these paths of the old member can be moved. A forwarding entity gives none, and would forward again."""
    return [
        (each, "SendDisabled")
        for each in existing.values()
        if each.path in paths and each.status in GIVES_NONE and not each.settings.get("forward_to")
    ]


def to_take(existing: Mapping[Key, Description], paths: Collection[str]) -> list[tuple[Description, str]]:
    """Statuses with which messages moved to these paths of the new member are accepted; its receivers get none yet."""
    folded = {path.lower() for path in paths}
    return [
        (each, "ReceiveDisabled" if each.kind == "queue" else "Active")
        for each in existing.values()
        if each.path.lower() in folded and each.status in TAKES_NONE
    ]


def to_close(existing: Mapping[Key, Description]) -> list[tuple[Description, str]]:
    """Statuses with which every entity is closed to applications."""
    return [
        (each, CLOSED[each.kind]) for each in existing.values() if each.status != CLOSED.get(each.kind, each.status)
    ]


def to_open(
    state: PairState, alias: str, entities: Iterable[Description], exclude: Iterable[str]
) -> list[tuple[Description, str]]:
    """Statuses for applications of a member's entities.

    Args:
        state: of the pair.
        alias: of the member.
        entities: that it has.
        exclude: patterns of names that are not changed now.
    """
    stopped = state.stopped_at(alias)
    statuses = {path.lower(): status for path, status in (*stopped.items(), *state.statuses.items())}
    is_fenced = state.fence_of(alias) is not Fence.OPEN
    is_all = is_fenced or state.phase is Phase.REOPENING
    # An entity that is excluded only since the fence was closed, too.
    spared = state.spared if is_fenced and state.spared is not None else exclude
    return [
        (each, wanted)
        for each in kept(entities, spared).values()
        if each.kind != "rule"
        and (is_all or each.path.lower() in statuses)
        and each.status != (wanted := statuses.get(each.path.lower(), "Active"))
    ]
