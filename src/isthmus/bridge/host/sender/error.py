"""Why the sink of a lease failed.

What it is: the errors that `SenderHost` raises, or reports to the reader for a route. What it is not: the refusals of a target,
which are its connector's.
"""

from __future__ import annotations

from isthmus.errors import IsthmusError, OutcomeUnknownError

__all__ = [
    "ClaimUnconfirmedError",
    "DivertUnknownError",
    "RowRefusedError",
    "SenderFaultError",
    "SourceGoneError",
    "TargetUnavailableError",
]


class SourceGoneError(IsthmusError):
    """The reader of this task ended without STOPPED."""

    code = "source-gone"
    retryable = True


class SenderFaultError(IsthmusError):
    """The sink had an internal fault, or was stopped by a fault of the query."""

    code = "sink-fault"
    retryable = True


class TargetUnavailableError(OutcomeUnknownError):
    """The target refused permanently, or accepted nothing for longer than the route waits."""

    code = "target-unavailable"


class ClaimUnconfirmedError(IsthmusError):
    """The driver did not confirm in time that the route's claim is held: another run may get it soon."""

    code = "claim-unconfirmed"
    retryable = True

    def __init__(self, route: str = "", claim: str = "") -> None:
        super().__init__("", route=route, claim=claim)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('route')}': the driver has not confirmed in time that it holds the claim '{a.get('claim')}'; it is frozen, "
            "gone, or cannot reach the namespace of the claim. Nothing is sent until it does"
        )


class DivertUnknownError(IsthmusError):
    """A row is diverted to an entity that its route does not have."""

    code = "divert-unknown"

    def __init__(self, route: str = "", name: str = "") -> None:
        super().__init__("", route=route, name=name)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('route')}': a row has the disposition 'divert:{a.get('name')}', and no step of the route diverts there; write "
            "'complete', 'dead-letter' or null in the column, or divert_to in a step"
        )


class RowRefusedError(IsthmusError):
    """A row cannot be sent, and this sink has no source to give it to."""

    code = "row-refused"

    def __init__(self, route: str = "", disposition: str = "", reason: str = "", description: str = "") -> None:
        super().__init__("", route=route, disposition=disposition, reason=reason, description=description)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('route')}': a row has the disposition {a.get('disposition')} ({a.get('reason')}: {a.get('description')}), and "
            "there is no source to give it to"
        )
