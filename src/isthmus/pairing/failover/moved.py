"""The result of a mover's pass over an entity, and its report.

What it is: values. It is a module of its own so that a forced fail-over, which moves nothing, does not load the mover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from isthmus.pairing.state.state import PairState

__all__ = ["Moved", "given_up"]


class Moved(NamedTuple):
    """The result.

    Attributes:
        moved: messages that the new member has acknowledged and the old one has removed.
        first_refusal: why the new member refused a message; empty if it took all.
    """

    moved: int
    first_refusal: str = ""


def given_up(state: PairState, moved: int, moved_dead: int) -> str:
    """The text of a reversed fail-over, with the messages that are at the other member by now.

    Args:
        state: of the fail-over.
        moved: how many messages it has moved.
        moved_dead: how many dead letters it has moved.
    """
    text = f"the fail-over was given up; {state.active} is active as before"
    counts = ((moved, "messages"), (moved_dead, "dead letters"))
    moved_text = " and ".join(f"{count} {what}" for count, what in counts if count)
    return (
        f"{text}; {moved_text} were moved before, and wait at {state.standby} until it is active"
        if moved_text
        else text
    )
