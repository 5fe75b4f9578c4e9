"""What the namespaces of a pair tell of the fail-overs of other processes, and what follows for the state of this one.

What it is: a namespace's marker and a state in, the state after it out. Pure. What it is not: the state's own transitions
(`isthmus.pairing.state.state`), or the reading and writing of markers (`isthmus.pairing.keeper.keeper`).

Invariants:
    I1. Of fail-overs that processes make without knowing of each other the one of the latest epoch counts, and no two have the same: a
        forced one is later than all that the new member tells (`insist`); a planned one that is overtaken ends where that leads
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
    """The state after another process's fail-over, as a namespace's marker tells it; the same where it tells nothing new.

    Only between the same two members, and while no fail-over of our own is under way.
    """
    epoch = _epoch_of(state, marker)
    is_same = epoch == state.epoch and not marker.get("under_way")
    tells_later = epoch > state.epoch or (is_same and marker["active"] < state.active)  # I2
    if not tells_later or state.phase is not Phase.STEADY:
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
    """The planned fail-over that is under way, after a later one of another process; the same where the marker tells of none.

    It goes on to where that one leads: the other member is opened, or this one again. One of the same epoch that has left things as they
    were makes it a later one.
    """
    if not state.is_under_way or marker.get("under_way"):
        return state
    if _epoch_of(state, marker) == state.epoch and marker["active"] == state.active and state.is_before_opening:
        # Another one of this epoch has ended where this one begins.
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
    """The forced fail-over, later than what the new member's marker tells and this state did not know.

    An operator has decided it last, and where to: it is not undone by an older decision. What others have done to the new member is not
    known; it is opened.
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
    """Whether a marker says that another process makes a fail-over that this state does not know yet."""
    is_ours = marker.get("standby") in (state.active, state.standby)
    return is_ours and bool(marker.get("under_way")) and _epoch_of(state, marker) > state.epoch


def is_behind(state: PairState, marker: Mapping[str, Any], now: float) -> bool:
    """Whether a marker says of another process's fail-over, under way or made, that this state does not know."""
    return is_overtaken(state, marker) or follow(state, marker, now) is not state


def is_later(state: PairState, marker: Mapping[str, Any]) -> bool:
    """Whether a marker says of a later fail-over than that of this state, or of one with the same epoch that leads elsewhere."""
    epoch = _epoch_of(state, marker)
    ours = state.standby if state.phase is Phase.OPENING else state.active  # what a marker of ours tells
    leads_elsewhere = not marker.get("under_way") and marker.get("active") != ours
    return epoch > state.epoch or (epoch == state.epoch and leads_elsewhere)


def _epoch_of(state: PairState, marker: Mapping[str, Any]) -> int:
    """The epoch that a marker tells; -1 where it is not of these two members."""
    epoch, active = marker.get("epoch"), marker.get("active")
    return epoch if isinstance(epoch, int) and active in (state.active, state.standby) else -1


def _fences_of(state: PairState, marker: Mapping[str, Any]) -> Mapping[str, Fence]:
    """The fences after a fail-over of another process, which may have ended after several that were not seen here."""
    active = str(marker["active"])
    other = state.standby if active == state.active else state.active
    is_fenced = marker.get("fenced", active != state.active or state.fence_of(other) is not Fence.OPEN)
    return {active: Fence.OPEN, other: Fence.PENDING if is_fenced else Fence.OPEN}
