"""What a list of seen messages is: the interface that every store of it has.

What it is: the four operations that a receiver needs of the list (claim, handle, release, renew), the bounds of the list, and the
error of a store that cannot answer. What it is not: a store (`window`, `sqlite`, `redis`), nor the making of a message's keys
(`isthmus.client.receive.message_key`). The page docs/how-to/receive-from-two-regions.md tells operators which store to choose.

A message has one or more keys, and is the same as another if they share one. A key is absent, *claimed* (handed over to a handler of
one owner) or *handled*. An owner is one receiver; its claims count as long as it renews.

Invariants, of every store:
    I1. What `handle` returned for is handled after a kill of the process, and is never claimed again within the window.
    I2. Of several claims of one message, one is told `NEW` until it is released, or its owner is gone.
    I3. The list keeps no more than `Bounds.max_count` handled keys, and none older than `Bounds.window`, once `sweep` was called.
    I4. A message that shares a key with a handled one, or with one of the same owner, gives that one its other keys as well.
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
    """What the list says of a message that arrived."""

    NEW = "new"
    """Not known; it is claimed for the asker now."""

    MINE = "mine"
    """Claimed by the asker before, and not handled yet."""

    OTHERS = "others"
    """Claimed by another owner that is alive, and not handled yet: ask again later."""

    HANDLED = "handled"
    """Handled: to be settled, not handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much the list remembers.

    Attributes:
        window: how long a handled message is remembered. A copy that arrives later than this is handled again, so it has to be longer
            than a region may be away.
        max_count: handled keys that are remembered at most; the oldest go first. A message has one or two.
        lease: how long an owner's claims count without renewal: how long a message waits whose receiver was killed.

    Raises:
        InvalidArgumentError: one is not positive.
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
    """What a sweep removed.

    Attributes:
        by_age: handled keys older than the window.
        by_count: handled keys within the window that went because there were too many; a copy of these that arrives late is
            handled again: raise `Bounds.max_count` where this is not 0.
    """

    by_age: int = 0
    by_count: int = 0


class SeenStoreError(IsthmusError):
    """The list of seen messages cannot be asked or written.

    Attributes:
        store: which one; a path, or an address without its password.
        reason: what it said.
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
        bounds: of the list.
    """

    bounds: Bounds

    def claim(self, messages: Sequence[Keys], owner: str) -> list[Verdict]:
        """Asks for messages in their order, and claims those that are new.

        Raises:
            SeenStoreError: the store does not answer; nothing may be handed over.
        """
        ...

    def handle(self, messages: Sequence[Keys], owner: str) -> list[bool]:
        """Marks messages as handled, durably, whoever claimed them; of each whether it was not handled before.

        Raises:
            SeenStoreError: the store does not answer; whether they are marked is unknown, and they may be marked again.
        """
        ...

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        """Takes back claims of this owner: the handler failed.

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
        """Removes what is beyond the bounds; quick where little is.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def count(self) -> int:
        """Handled keys that are remembered.

        Raises:
            SeenStoreError: the store does not answer.
        """
        ...

    def close(self) -> None:
        """Ends the use of the store; what is in it stays."""
        ...
