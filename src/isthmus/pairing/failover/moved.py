"""What a mover did with an entity, and how it is told.

What it is: values. It is a module of its own so that a forced fail-over, which moves nothing, does not load what moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from isthmus.pairing.state.state import PairState

__all__ = ["Moved", "given_up"]


class Moved(NamedTuple):
    """What was done.

    Attributes:
        moved: messages that the new member has acknowledged and the old one has removed.
        first_refusal: why the new member took a message not; empty where it took all.
    """

    moved: int
    first_refusal: str = ""


def given_up(state: PairState, moved: int, moved_dead: int) -> str:
    """That a fail-over goes back, and what is at the other member by now.

    Args:
        state: of the fail-over.
        moved: messages that it has moved.
        moved_dead: likewise dead letters.
    """
    text = f"the fail-over was given up; {state.active} is active as before"
    counts = ((moved, "messages"), (moved_dead, "dead letters"))
    told = " and ".join(f"{count} {what}" for count, what in counts if count)
    return f"{text}; {told} were moved before, and wait at {state.standby} until it is active" if told else text
