"""What an entity in one store answers where entities differ: the answers of one that is none of the special kinds.

What it is: defaults, which queues, topics and entities with sessions replace, so that nobody asks for an entity's class.
What it is not: state, or any work. The contract is `isthmus.entities.port`.
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
        is_partitioned: whether it is one of several fragments' facade; no.
        is_whole: whether all of its stores are up; asked only of an entity whose store is.
        transfer_dead_letters: where those went whose target was gone, or took none; None while there were none.
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
        """What takes these messages in a transaction: itself."""
        return self

    def scheduled_in(self, sequences: Sequence[int]) -> Self:
        """What has these scheduled messages: itself."""
        return self

    def fragment_index(self, token: bytes) -> int:
        """The fragment that a lock token names: there is only one."""
        del token
        return 0

    def holder_of(self, tokens: Sequence[bytes]) -> Self:
        """Whose locks these are: its own."""
        del tokens
        return self

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach; they may."""
        return True

    @property
    def source(self) -> MessageSource | None:
        """Itself, where it gives messages; it gives none."""
        return None

    @property
    def sessions(self) -> Sessions | None:
        """Its sessions, where it requires them; it requires none."""
        return None

    # ---- what only some entities do

    def check_sessions(self, messages: Sequence[Parts]) -> None:
        """Refuse messages without a session; asked only of an entity that requires one.

        Raises:
            SessionRequiredError: one names none.
            InvalidMessageError: one names something that is no session id.
        """

    def forward_parts(self, path: str | None, forward: Callable[[Any, Any], None]) -> None:
        """Call `forward` with each part that forwards to a path by itself, and its store: nothing forwards."""

    def notify(self) -> None:
        """Call the listeners."""

    def tell_senders(self) -> None:
        """Tell senders that wait for copies that what they sent is durable."""

    def release_store(self) -> None:
        """Let go of the scan of the store that reading may hold open."""

    def housekeep(self) -> None:
        """Let go of what an idle entity holds."""

    def lose_holds(self) -> None:
        """End every hold on a session, since the store cannot be reached."""

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        """End the lives of unlocked messages among first..last that are over; the run still to look at, or None."""
        del first, last, now_ms, limit
        return None

    def take_back(self, stored: Stored, error: IsthmusError) -> None:
        """Stage a message that left for another store, whose target did not take it, where somebody will look for it."""
