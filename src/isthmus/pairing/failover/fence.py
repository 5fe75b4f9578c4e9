"""The fence of the former active member.

Invariants:
    I1. A member that has become the active one meanwhile, by a fail-over of another machine, is opened again: a process that
        hung while it closed the member may continue long after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from isthmus.pairing.failover.wanted_status import to_close
from isthmus.pairing.status import set_statuses
from isthmus.topology.pair.description import Description, kept

__all__ = ["close"]


class _Member(Protocol):
    def descriptions(self) -> list[Description]: ...

    def set_status(self, entity: Description, status: str) -> None: ...

    def map(self, work: Callable[[Any], Any], asked: Iterable[Any]) -> list[Any]: ...


def close(
    member: _Member, exclude: Iterable[str], statuses: Mapping[str, str], is_overtaken: Callable[[], bool]
) -> bool:
    """Close every entity of a member to applications; a refusal is a difference in each round, which is reported.

    Args:
        member: the member.
        exclude: patterns of names that are not changed.
        statuses: path → status for applications, where that is not Active.
        is_overtaken: whether the member's marker is of a later fail-over.

    Returns:
        Whether it is closed; False where another fail-over has begun.

    Raises:
        AdministrationError: no answer.
    """
    if is_overtaken():
        return False
    closed = to_close(kept(member.descriptions(), exclude))
    set_statuses(member, closed)
    if is_overtaken():
        open_to = {path.lower(): status for path, status in statuses.items()}
        set_statuses(member, [(each, open_to.get(each.path.lower(), "Active")) for each, _ in closed])
        return False
    return True
