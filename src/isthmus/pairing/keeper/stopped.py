"""Entities of a pair's member that are stopped so that their messages can be counted before they are deleted.

What it is: the entities that a round is about to stop, and the restoring of their status if they are not deleted after all. What it is
not: the deletion (`isthmus.connectors.servicebus.administration.pair.member`).

Invariants:
    I1. A stopped entity is in the state before the stop, and until it is deleted or has its former status again: also when its name is
        excluded, its member has become the active one by a fail-over that another process made, or the pair is broken.
    I2. Nothing is opened at a member that is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from isthmus.pairing.state.state import Fence, PairState
from isthmus.pairing.status import set_statuses
from isthmus.topology.pair.description import TAKES_NONE, Description
from isthmus.topology.pair.difference import Drift, Step

__all__ = ["restore", "to_be_stopped", "with_former_status"]

_STOPPED = "SendDisabled"


class _Member(Protocol):
    alias: str

    def descriptions(self) -> list[Description]: ...

    def set_status(self, entity: Description, status: str) -> None: ...

    def map(self, work: Callable[[Any], Any], asked: Iterable[Any]) -> list[Any]: ...


def to_be_stopped(state: PairState, drift: Drift) -> dict[str, str]:
    """Path → status of the queues and topics to delete that take messages, or did before an earlier round stopped them."""
    found: dict[str, str] = {}
    earlier = state.stopped_at(state.standby)
    for step in drift.steps:
        entity = step.entity
        if step.action != "delete" or entity.kind not in {"queue", "topic"}:
            continue
        status = earlier.get(entity.path, entity.status) if entity.status == _STOPPED else entity.status
        if status not in TAKES_NONE:
            found[entity.path] = status
    return found


def with_former_status(step: Step, stopped: Mapping[str, str]) -> Step:
    """The deletion of an entity that an earlier round stopped, as if that had not happened."""
    if step.action != "delete" or step.before is None or step.before.path not in stopped:
        return step
    return replace(step, before=step.before.with_settings(status=stopped[step.before.path]))


def restore(member: _Member, state: PairState, exempt: Collection[str] = ()) -> PairState:
    """Restore the former status of a member's stopped entities; returns the state then, which its caller saves.

    Args:
        member: the member.
        state: that of the pair.
        exempt: paths of those that stay stopped.

    Raises:
        AdministrationError: it does not answer.
    """
    earlier = state.stopped_at(member.alias)
    left = {path: status for path, status in earlier.items() if path not in exempt}
    if not left or state.fence_of(member.alias) is not Fence.OPEN:
        return state
    still = [each for each in member.descriptions() if each.path in left and each.status == _STOPPED]
    refused = set_statuses(member, [(each, left[each.path]) for each in still])  # the next round retries it
    stay = {path: status for path, status in earlier.items() if path in exempt or path in refused}
    return state.with_stopped(member.alias, stay)
