"""The statuses of a member's entities, read and set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from isthmus.errors import IsthmusError
from isthmus.topology.pair.description import Description

__all__ = ["set_statuses", "statuses_of"]


class _Member(Protocol):
    def set_status(self, entity: Description, status: str) -> None: ...

    def map(self, work: Callable[[Any], Any], asked: Iterable[Any]) -> list[Any]: ...


def statuses_of(existing: Iterable[Description]) -> dict[str, str]:
    """The status of those entities that are not Active, by path."""
    return {each.path: each.status for each in existing if each.kind != "rule" and each.status != "Active"}


def set_statuses(member: _Member, wanted: Sequence[tuple[Description, str]]) -> dict[str, IsthmusError]:
    """Set statuses, as many as possible.

    Returns:
        Path → why an entity keeps its status.

    Raises:
        AdministrationError: no answer; some may be set.
    """

    def set_one(asked: tuple[Description, str]) -> IsthmusError | None:
        try:
            member.set_status(*asked)
        except IsthmusError as error:
            return error
        return None

    refused: dict[str, IsthmusError] = {}
    for (entity, _), error in zip(wanted, member.map(set_one, wanted), strict=True):
        if error is None:
            continue
        if error.retryable:
            raise error
        refused[entity.path] = error
    return refused
