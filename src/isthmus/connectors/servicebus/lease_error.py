"""Why a lease failed.

What it is: the errors that a lease raises through its reader, or hands to it. What it is not: the faults of connection and
link, which are the transport's.
"""

from __future__ import annotations

from isthmus.errors import IsthmusError

__all__ = ["ClaimUnconfirmedError", "HeldElsewhereError", "LeaseError", "RowsDroppedError"]


class LeaseError(IsthmusError):
    """The lease could not go on; what was not settled has been given back."""

    code = "lease"
    retryable = True


class ClaimUnconfirmedError(LeaseError):
    """The driver did not confirm in time that the task's claim is held: another run may hold it soon."""

    code = "claim-unconfirmed"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)

    def text(self) -> str:
        return (
            f"'{self.attributes.get('path')}': the driver has not confirmed in time that it holds the claim of the task; it is "
            "frozen, gone, or cannot reach the namespace of the claim. Nothing is moved until it does"
        )


class HeldElsewhereError(LeaseError):
    """An earlier message is locked by somebody else, and stays so for longer than a dead reader's lock would last."""

    code = "held-elsewhere"

    def __init__(self, path: str = "", sequence: int = 0, seconds: float = 0.0) -> None:
        super().__init__("", path=path, sequence=sequence, seconds=seconds)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': message {a.get('sequence')} has been locked by another receiver for longer than "
            f"{a.get('seconds'):.0f} s; later messages wait for it. End the other receiver, or read with ordered=false"
        )


class RowsDroppedError(IsthmusError):
    """Rows that the source yielded never came to the sink: a step of the query removed them."""

    code = "rows-dropped"

    def __init__(self, count: int = 0, first_sequence: int = 0, steps: str = "") -> None:
        super().__init__("", count=count, first_sequence=first_sequence, steps=steps)

    def text(self) -> str:
        a = self.attributes
        where = f"the step '{a.get('steps')}'" if a.get("steps") else "a step of the query"
        return (
            f"{a.get('count')} messages from sequence number {a.get('first_sequence')} on did not come to the sink: {where} "
            "removes rows; mark them instead (columns disposition and reason). They have been given back to the source"
        )
