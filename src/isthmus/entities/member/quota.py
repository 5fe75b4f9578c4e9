"""The quota of one entity: how many bytes of messages it may have.

What it is: what counts as too much, messages that are still coming included, and the refusal. What it is not: what an
entity has already (`stored_bytes` of it). The entity is given with each call: a circle of two objects would be freed late,
and sessions are many. Spec: docs/explanation/protocol.md, Sending, Entities.

Invariants:
    I1. Bodies that nobody refers to any more are given up before a message is refused.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.errors import QuotaExceededError

__all__ = ["Quota"]


class Owner(Protocol):
    """Whose quota it is.

    Attributes:
        path: canonical.
        active_count: messages that are neither deferred nor scheduled.
        size_bytes: of all that the entity stores.
    """

    path: str
    active_count: int
    size_bytes: int

    @property
    def context(self) -> Context:
        """What entities share."""
        ...

    def stored_bytes(self) -> int:
        """What counts towards the quota."""
        ...


class Quota:
    """What one entity may have.

    Attributes:
        limit_bytes: 0 where there is no limit.
        copies: of a topic: how many copies are sure to be made of each message; 0 where each is stored as it is.
    """

    __slots__ = ("_coming_bytes", "copies", "limit_bytes")

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.copies = 0
        # Of messages that are still coming; in memory only, since what has not come whole does not survive.
        self._coming_bytes = 0

    def hold(self, owner: Owner, size_bytes: int) -> None:
        """Count bytes of a message that is still coming.

        Raises:
            QuotaExceededError: they do not fit; nothing is counted.
        """
        self.check(owner, size_bytes)
        self._coming_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """The message is whole and about to be taken, or does not come."""
        self._coming_bytes -= size_bytes

    def check(self, owner: Owner, size_bytes: int) -> None:
        """Refuse so many bytes more if they do not fit.

        Raises:
            QuotaExceededError: they do not.
        """
        refusal = self.refusal(owner, size_bytes)
        if refusal is not None:
            raise refusal

    def refusal(self, owner: Owner, size_bytes: int, *, midway: bool = False) -> QuotaExceededError | None:
        """The refusal, if so many bytes more do not fit.

        Args:
            owner: the entity.
            size_bytes: more.
            midway: whether something may be staged without its other half, which must not be written now.
        """
        if not self.limit_bytes:
            return None
        if self.copies:  # those of messages that wait to be copied included
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
