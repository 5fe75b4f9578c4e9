"""Why a write to a target failed.

What it is: the errors that the sink raises of its own. What it is not: the target's refusals, which are the transport's.
"""

from __future__ import annotations

from isthmus.errors import IsthmusError, OutcomeUnknownError

__all__ = ["RowRefusedError", "SourceGoneError", "TargetChangedError", "TargetUnavailableError"]


class TargetUnavailableError(OutcomeUnknownError):
    """The target took nothing for longer than the route waits; what it did not acknowledge goes back to the source."""

    code = "target-unavailable"


class TargetChangedError(IsthmusError):
    """The target is not what it was when the lease began: copies made for it are of another form."""

    code = "target-changed"


class SourceGoneError(IsthmusError):
    """The reader of this task ended without saying that the lease was over."""

    code = "source-gone"
    retryable = True


class RowRefusedError(IsthmusError):
    """A row cannot be copied, and this sink has no source to give it to."""

    code = "row-refused"

    def __init__(self, path: str = "", disposition: str = "", reason: str = "", description: str = "") -> None:
        super().__init__("", path=path, disposition=disposition, reason=reason, description=description)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': a row has the disposition {a.get('disposition')} ({a.get('reason')}: {a.get('description')}), "
            "and there is no source to give it to; options source_connection and source_entity name one"
        )
