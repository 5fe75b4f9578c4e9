"""The default implementations of an entity in one store.

What it is: defaults, which queues, topics and entities with sessions override, so that no caller checks an entity's class.
What it is not: state, or any processing. The contract is `isthmus.entities.port`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from isthmus.entities.port import MessageSource, Sessions
from isthmus.entities.record.amend import Stored
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.errors import IsthmusError

__all__ = ["Member"]


class Member:
    """An entity in one store.

    Attributes:
        is_partitioned: whether it is the facade of several fragments; False.
        is_whole: whether all of its stores are up; only used for an entity whose store is.
        transfer_dead_letters: messages whose target was deleted, or refused them; None while there were none.
    """

    is_partitioned: Literal[False] = False
    is_whole = True
    transfer_dead_letters: MessageSource | None = None

    @property
    def stored(self) -> Self:
        """Itself: see `isthmus.entities.transaction.participant`."""
        return self

    def runs(self, payloads: Sequence[Payload]) -> list[int]:
        """Lengths of the runs of messages that `accept` can take together: all."""
        return [len(payloads)]

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> Self:
        """The participant that takes these messages in a transaction: itself."""
        return self

    def scheduled_in(self, sequences: Sequence[int]) -> Self:
        """The participant that has these scheduled messages: itself."""
        return self

    def fragment_index(self, token: bytes) -> int:
        """The fragment that a lock token names: there is only one."""
        del token
        return 0

    def holder_of(self, tokens: Sequence[bytes]) -> Self:
        """The participant that has these locks: itself."""
        del tokens
        return self

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach; they may."""
        return True

    @property
    def source(self) -> MessageSource | None:
        """Itself, where it gives messages; None by default."""
        return None

    @property
    def sessions(self) -> Sessions | None:
        """Its sessions, where it requires them; None by default."""
        return None

    # ---- for some kinds of entities only

    def check_sessions(self, messages: Sequence[Parts]) -> None:
        """Refuse messages without a session; only called for an entity that requires one.

        Raises:
            SessionRequiredError: one has none.
            InvalidMessageError: the session id of one is malformed.
        """

    def forward_parts(self, path: str | None, forward: Callable[[Any, Any], None]) -> None:
        """Call `forward` with each part that forwards to a path by itself, and its store: nothing forwards."""

    def notify(self) -> None:
        """Call the listeners."""

    def notify_senders(self) -> None:
        """Call back senders that wait for copies, as their messages are durable."""

    def release_store(self) -> None:
        """Close the scan of the store that reading may keep open."""

    def housekeep(self) -> None:
        """Free the memory and scans of an idle entity."""

    def lose_session_locks(self) -> None:
        """End every session lock, since the store is down."""

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        """Expire the unlocked messages among first..last whose time is over; returns the run still to check, or None."""
        del first, last, now_ms, limit
        return None

    def take_back(self, stored: Stored, error: IsthmusError) -> None:
        """Stage a message that left for another store, and was refused there, in the dead-letter queue for it."""
