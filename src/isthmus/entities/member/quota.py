"""The quota of one entity: how many bytes of messages it may have.

What it is: the limit, which also counts messages still being received, and the refusal. What it is not: the present
size of an entity (its `stored_bytes`). The entity is passed with each call: two objects that refer to each other would be freed late,
and sessions are many. Spec: docs/explanation/protocol.md, Sending, Entities.

Invariants:
    I1. Bodies without a reference are released before a message is refused.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.errors import QuotaExceededError

__all__ = ["Quota"]


class Owner(Protocol):
    """The entity that has the quota.

    Attributes:
        path: canonical.
        active_count: messages that are neither deferred nor scheduled.
        size_bytes: of everything that the entity stores.
    """

    path: str
    active_count: int
    size_bytes: int

    @property
    def context(self) -> Context:
        """The objects that entities share."""
        ...

    def stored_bytes(self) -> int:
        """The size that counts towards the quota."""
        ...


class Quota:
    """The quota of one entity.

    Attributes:
        limit_bytes: 0 where there is no limit.
        copies: of a topic: how many copies are certainly made of each message; 0 where each is stored as it is.
    """

    __slots__ = ("_coming_bytes", "copies", "limit_bytes")

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.copies = 0
        # Bytes of messages still being received; in memory only, since an incomplete message does not survive a restart.
        self._coming_bytes = 0

    def reserve(self, owner: Owner, size_bytes: int) -> None:
        """Reserve bytes for a message that is still being received.

        Raises:
            QuotaExceededError: they do not fit; nothing is reserved.
        """
        self.check(owner, size_bytes)
        self._coming_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release reserved bytes: the message is complete and about to be taken, or was aborted."""
        self._coming_bytes -= size_bytes

    def check(self, owner: Owner, size_bytes: int) -> None:
        """Refuse so many more bytes if they do not fit.

        Raises:
            QuotaExceededError: they do not.
        """
        refusal = self.refusal(owner, size_bytes)
        if refusal is not None:
            raise refusal

    def refusal(self, owner: Owner, size_bytes: int, *, midway: bool = False) -> QuotaExceededError | None:
        """The refusal, if so many more bytes do not fit; None if they do.

        Args:
            owner: the entity.
            size_bytes: more.
            midway: whether an operation may be half staged, which must not be written now.
        """
        if not self.limit_bytes:
            return None
        if self.copies:  # including those of messages that wait to be copied
            waiting_bytes = owner.size_bytes if owner.active_count else 0
            size_bytes = (size_bytes + waiting_bytes) * self.copies
        wanted_bytes = self._coming_bytes + size_bytes
        if owner.stored_bytes() + wanted_bytes <= self.limit_bytes:
            return None
        if (
            owner.context.blobs.release_dead(written=not midway)
            and owner.stored_bytes() + wanted_bytes <= self.limit_bytes
        ):
            return None
        return QuotaExceededError(
            f"The maximum entity size has been reached or exceeded for {type(owner).__name__}: '{owner.path}'. Size of "
            f"entity in bytes:{owner.stored_bytes()}, Max entity size in bytes:{self.limit_bytes}. Receive messages or "
            "raise MaxSizeInMegabytes."
        )
