"""The markers of other processes' fail-overs at the namespaces of a pair, and their effects on the state of this one.

What it is: a namespace's marker and a state in, the state after it out. Pure. What it is not: the state's own transitions
(`isthmus.pairing.state.state`), or the reading and writing of markers (`isthmus.pairing.keeper.keeper`).

Invariants:
    I1. Of fail-overs that processes make without knowing of each other the one of the latest epoch is valid, and no two have the same: a
        forced one is later than all in the new member's marker (`insist`); a planned one that is overtaken ends at the later one's member
        (`take_over`).
    I2. Of two with the same epoch, forced at the same time in both directions, every process chooses the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isthmus.pairing.state.state import Fence, PairState, Phase

__all__ = ["follow", "insist", "is_behind", "is_later", "is_overtaken", "take_over"]


def follow(state: PairState, marker: Mapping[str, Any], now: float) -> PairState:
    """The state after another process's fail-over, as a namespace's marker reports it; unchanged if it is not new.

    Only between the same two members, and while this process has no fail-over in progress.
    """
    epoch = _epoch_of(state, marker)
    is_same = epoch == state.epoch and not marker.get("under_way")
    is_newer = epoch > state.epoch or (is_same and marker["active"] < state.active)  # I2
    if not is_newer or state.phase is not Phase.STEADY:
        return state
    active = str(marker["active"])
    other = state.standby if active == state.active else state.active
    return replace(
        state,
        epoch=epoch,
        active=active,
        standby=other,
        is_forced=False,
        is_told=True,
        fences=_fences_of(state, marker),
        spared=None,
        intended=(),
        changed_at=now,
    )


def take_over(state: PairState, marker: Mapping[str, Any], now: float) -> PairState:
    """The planned fail-over in progress, after a later one of another process; unchanged if the marker has none.

    It continues to that one's active member: the other member is opened, or this one again. If one of the same epoch has changed
    nothing, this one becomes a later one.
    """
    if not state.is_in_progress or marker.get("under_way"):
        return state
    if _epoch_of(state, marker) == state.epoch and marker["active"] == state.active and state.is_before_opening:
        # Another one of this epoch has ended at the member where this one begins.
        return replace(state, epoch=state.epoch + 1, fences=_fences_of(state, marker))
    if not is_later(state, marker):
        return state
    is_back = marker["active"] == state.active
    return replace(
        state,
        epoch=marker["epoch"],
        phase=Phase.REOPENING if is_back else Phase.OPENING,
        is_forced=not is_back,
        is_beside=True,
        is_told=True,
        fences=_fences_of(state, marker) if is_back else state.fences,
        changed_at=now,
    )


def insist(state: PairState, marker: Mapping[str, Any], now: float) -> PairState:
    """The forced fail-over, later than everything in the new member's marker that this state did not know.

    An operator has decided it last, and its target: an older decision does not undo it. Changes of the new member by others are
    unknown; it is opened.
    """
    epoch = _epoch_of(state, marker)
    is_same = dict(marker) == state.marker or (marker.get("active") == state.target and not marker.get("under_way"))
    if epoch < state.epoch or (epoch == state.epoch and is_same):
        return state
    if is_same and state.phase is Phase.STEADY:
        return follow(state, marker, now)
    # A planned one that began at the same time has at most let suspended entities of the new member take what it moves.
    is_beside = epoch == state.epoch and bool(marker.get("under_way"))
    if is_beside and not state.statuses:
        return replace(state, epoch=epoch + 1, changed_at=now)
    new, old = state.target, state.standby if state.phase is Phase.STEADY else state.active
    fence = state.fence_of(new) if is_beside else Fence.PENDING
    return replace(
        state,
        epoch=epoch + 1,
        active=old,
        standby=new,
        phase=Phase.OPENING,
        fences={**state.fences, new: fence},
        changed_at=now,
    )


def is_overtaken(state: PairState, marker: Mapping[str, Any]) -> bool:
    """Whether a marker is of another process's fail-over in progress that this state does not know yet."""
    is_ours = marker.get("standby") in (state.active, state.standby)
    return is_ours and bool(marker.get("under_way")) and _epoch_of(state, marker) > state.epoch


def is_behind(state: PairState, marker: Mapping[str, Any], now: float) -> bool:
    """Whether a marker is of another process's fail-over, in progress or made, that this state does not know."""
    return is_overtaken(state, marker) or follow(state, marker, now) is not state


def is_later(state: PairState, marker: Mapping[str, Any]) -> bool:
    """Whether a marker is of a later fail-over than that of this state, or of one with the same epoch and another target."""
    epoch = _epoch_of(state, marker)
    ours = state.standby if state.phase is Phase.OPENING else state.active  # the active member in this state's marker
    leads_elsewhere = not marker.get("under_way") and marker.get("active") != ours
    return epoch > state.epoch or (epoch == state.epoch and leads_elsewhere)


def _epoch_of(state: PairState, marker: Mapping[str, Any]) -> int:
    """The epoch in a marker; -1 if it is not of these two members."""
    epoch, active = marker.get("epoch"), marker.get("active")
    return epoch if isinstance(epoch, int) and active in (state.active, state.standby) else -1


def _fences_of(state: PairState, marker: Mapping[str, Any]) -> Mapping[str, Fence]:
    """The fences after a fail-over of another process, which may have ended after several that this one has not seen."""
    active = str(marker["active"])
    other = state.standby if active == state.active else state.active
    is_fenced = marker.get("fenced", active != state.active or state.fence_of(other) is not Fence.OPEN)
    return {active: Fence.OPEN, other: Fence.PENDING if is_fenced else Fence.OPEN}
