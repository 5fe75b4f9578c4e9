"""The error for an entity that is not deleted because it contains messages."""

from __future__ import annotations

from isthmus.errors import IsthmusError

__all__ = ["HoldsMessagesError"]


class HoldsMessagesError(IsthmusError):
    """An entity that was to be deleted contains messages; it is unchanged."""

    code = "holds-messages"

    def __init__(self, path: str = "", count: int = 0) -> None:
        super().__init__("", path=path, count=count)
        self.path, self.count = path, count

    def text(self) -> str:
        return f"{self.path} contains {self.count} messages; receive them, or sync with --delete-messages"
