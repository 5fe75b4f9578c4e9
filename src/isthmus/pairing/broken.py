"""Whether a pair was broken by another process.

What it is: a query of its members, whose markers then do not name the pair. What it is not: the reaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from isthmus.errors import IsthmusError

__all__ = ["is_broken"]


class _Member(Protocol):
    def read_marker(self, pair: str) -> Mapping[str, Any]: ...


def is_broken(members: Mapping[str, _Member], pair: str, exempt: str = "") -> bool:
    """Whether the markers of both members do not name a pair that they named before; a member that does not answer may name it.

    Args:
        members: by alias.
        pair: its name.
        exempt: alias of a member whose marker is known not to name it.
    """
    for alias in members.keys() - {exempt}:
        try:
            if members[alias].read_marker(pair):
                return False
        except IsthmusError:
            return False
    return True
