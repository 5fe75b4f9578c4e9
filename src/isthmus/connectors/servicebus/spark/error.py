"""Why a read or a write of the data source failed.

What it is: the data source's own errors. What it is not: those of a micro-batch (`batch.error`), or of connection and link, which
are the transport's.
"""

from __future__ import annotations

from isthmus.errors import IsthmusError

__all__ = ["HeldElsewhereError", "RowRefusedError", "TargetChangedError"]


class HeldElsewhereError(IsthmusError):
    """A message is locked by another receiver, for longer than a dead reader's lock would last."""

    code = "held-elsewhere"
    retryable = True

    def __init__(self, path: str = "", sequence: int = 0, seconds: float = 0.0) -> None:
        super().__init__("", path=path, sequence=sequence, seconds=seconds)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': message {a.get('sequence')} has been locked by another receiver for longer than "
            f"{a.get('seconds'):.0f} s; later messages wait for it. End the other receiver, or read with ordered=false"
        )


class TargetChangedError(IsthmusError):
    """The target has changed: copies made for it have another form."""

    code = "target-changed"


class RowRefusedError(IsthmusError):
    """A row cannot be copied, and this sink has no source at which to settle it."""

    code = "row-refused"

    def __init__(self, path: str = "", disposition: str = "", reason: str = "", description: str = "") -> None:
        super().__init__("", path=path, disposition=disposition, reason=reason, description=description)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': a row has the disposition {a.get('disposition')} ({a.get('reason')}: {a.get('description')}), "
            "and there is no source at which to settle it; options source_connection and source_entity name one"
        )
