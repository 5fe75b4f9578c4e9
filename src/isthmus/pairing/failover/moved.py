"""The result of a mover's pass over an entity.

What it is: a value. It is a module of its own so that a forced fail-over, which moves nothing, does not load the mover.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Moved"]


class Moved(NamedTuple):
    """The result.

    Attributes:
        moved: messages that the new member has acknowledged and the old one has removed.
        first_refusal: why the new member refused a message; empty if it took all.
    """

    moved: int
    first_refusal: str = ""
