"""Whether a pair was broken by another process.

What it is: the question to its members, of which none says anything of the pair then. What it is not: what is done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from isthmus.errors import IsthmusError

__all__ = ["is_broken"]


class _Member(Protocol):
    def read_marker(self, pair: str) -> Mapping[str, Any]: ...


def is_broken(members: Mapping[str, _Member], pair: str, but: str = "") -> bool:
    """Whether no member says anything of a pair that both were told of; one that gives no answer may.

    Args:
        members: by alias.
        pair: its name.
        but: alias of a member that says nothing, as is known.
    """
    for alias in members.keys() - {but}:
        try:
            if members[alias].read_marker(pair):
                return False
        except IsthmusError:
            return False
    return True
