"""The interface of every store for the list of seen messages.

What it is: the operations that a receiver needs of the list (claim, handle, release, renew), the bounds of the list, and the
error of a store that does not answer. What it is not: a store (`window`, `sqlite`, `redis`), nor the computation of a message's keys
(`isthmus.client.receive.message_key`). The page docs/how-to/receive-from-two-regions.md helps operators to choose a store.

A message has one or more keys, and is the same as another message if they share a key. A key is absent, *claimed* (handed over to a handler of
one owner) or *handled*. An owner is one receiver; its claims are valid as long as it renews them.

Invariants, of every store:
    I1. A message for which `handle` returned is handled after a kill of the process, and is never claimed again within the window.
    I2. Of several claims of one message, only one gets `NEW` until it is released, or its owner's lease ends.
    I3. The list keeps no more than `Bounds.max_count` handled keys, and none older than `Bounds.window`, after `sweep`.
    I4. A message that shares a key with a handled one, or with one of the same owner, adds its other keys to that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["Bounds", "Keys", "SeenStore", "SeenStoreError", "Swept", "Verdict"]

Keys = tuple[bytes, ...]
"""The keys of one message; at least one."""


class Verdict(Enum):
    """The list's answer for a message that arrived."""

    NEW = "new"
    """Not known; it is now claimed for the caller."""

    MINE = "mine"
    """Claimed by the caller before, and not handled yet."""

    OTHERS = "others"
    """Claimed by another owner with a valid lease, and not handled yet: ask again later."""

    HANDLED = "handled"
    """Handled: settle it, do not hand it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the list.

    Attributes:
        window: how long a handled message is remembered. A later copy is handled again, so the window has to be longer
            than the outage of a region.
        max_count: the most handled keys that are remembered; the oldest are removed first. A message has one to three.
        lease: how long an owner's claims are valid without renewal: this is how long the messages of a killed receiver wait.

    Raises:
        InvalidArgumentError: a value is not positive.
    """

    window: timedelta = timedelta(days=7)
    max_count: int = 1_000_000
    lease: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        for name in ("window", "lease"):
            if getattr(self, name) < timedelta(milliseconds=1):
                raise InvalidArgumentError(f"{name} of the seen list is {getattr(self, name)}; it has to be positive")
        if self.max_count < 1:
            raise InvalidArgumentError(f"max_count of the seen list is {self.max_count}; it has to be at least 1")

    @property
    def window_ms(self) -> int:
        """The window in milliseconds."""
        return self.window // timedelta(milliseconds=1)

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return self.lease // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Swept:
    """The keys that a sweep removed.

    Attributes:
        by_age: handled keys older than the window.
        by_count: handled keys within the window that were removed because there were too many; a late copy of them is
            handled again: raise `Bounds.max_count` if this is not 0.
    """

    by_age: int = 0
    by_count: int = 0


class SeenStoreError(IsthmusError):
    """The list of seen messages cannot be read or written.

    Attributes:
        store: the store: a path, or an address without its password.
        reason: the error of the store.
    """

    code = "seen-store"
    retryable = True

    def __init__(self, store: str = "", reason: str = "") -> None:
        super().__init__("", store=store, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return (
            f"the list of seen messages {a.get('store', '')} failed: {a.get('reason', '')}; no message is handed over or "
            "settled until it answers again"
        )


class SeenStore(Protocol):
    """A list of seen messages. Its methods block, and may be called from any thread.

    Attributes:
        bounds: limits of the list.
    """

    bounds: Bounds

    def claim(self, messages: Sequence[Keys], owner: str) -> list[Verdict]:
        """Checks messages in their order, and claims those that are new.

        Raises:
            SeenStoreError: the store does not answer; no message may be handed over.
        """
        ...

    def handle(self, messages: Sequence[Keys], owner: str) -> list[bool]:
        """Marks messages as handled, durably, independent of their claims. Returns for each whether it was not handled before.

        Raises:
            SeenStoreError: the store does not answer; it is unknown whether they are marked, and they may be marked again.
        """
        ...

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        """Releases claims of this owner: the handler failed.

        Raises:
            SeenStoreError: the store does not answer; the claims end with the owner's lease.
        """
        ...

    def renew(self, owner: str) -> None:
        """Keeps the owner's claims for another `Bounds.lease`.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def retire(self, owner: str) -> None:
        """Ends the owner and all its claims.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def sweep(self) -> Swept:
        """Removes the keys beyond the limits; fast if there are few.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def count(self) -> int:
        """The number of handled keys.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def close(self) -> None:
        """Closes the store; its content stays."""
        ...
