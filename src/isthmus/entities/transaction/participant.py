"""The participants of a transaction.

What it is: the contract between a transaction and the entities, fragments and routes via entities that it works on. What it is
not: a transaction (`transaction`), or the general interface of an entity (`isthmus.entities.port`).
Spec: docs/explanation/protocol.md, Transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import IsthmusError

__all__ = ["LockHolder", "Participant", "ScheduleParticipant", "StoredEntity"]


class StoredEntity(Protocol):
    """A plain entity, or a fragment: the object of one number in one store."""

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def is_fragment(self) -> bool:
        """Whether it is a part of a partitioned entity."""
        ...

    @property
    def last(self) -> int:
        """Highest sequence number given out."""
        ...

    @property
    def context(self) -> Context:
        """The objects that it shares with the other entities in its store."""
        ...


class Participant(Protocol):
    """A target of messages in a transaction: a queue, a topic, a fragment of one, or the route via one."""

    @property
    def path(self) -> str:
        """Of the entity that counts as the transaction's."""
        ...

    @property
    def stored(self) -> StoredEntity:
        """The entity to whose store the messages are written."""
        ...

    def examine(self, payloads: Sequence[Payload]) -> list[Parts]:
        """Check and parse messages; stages nothing."""
        ...

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """Why these messages would not be taken now; None if they would."""
        ...

    def enter(self, messages: Sequence[Parts], now_ms: int) -> None:
        """Stage examined messages."""
        ...


class ScheduleParticipant(Participant, Protocol):
    """As `Participant`, also of scheduled messages."""

    def reserve(self, count: int, on_durable: Callback | None = None, on_failed: Failure | None = None) -> list[int]:
        """Give numbers to messages that may be scheduled later."""
        ...

    def enter_scheduled(self, messages: Sequence[tuple[int, Parts, int]], now_ms: int) -> None:
        """Stage (reserved number, examined message, due wall ms)."""
        ...

    def missing_scheduled(self, sequences: Sequence[int]) -> list[int]:
        """Which of the sequence numbers are none of scheduled messages."""
        ...

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Drop scheduled messages."""
        ...


class LockHolder(Protocol):
    """The owner of lock tokens: a queue, a session's messages, or a fragment."""

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def stored(self) -> StoredEntity:
        """The entity in whose store the messages are."""
        ...

    def holds(self, tokens: Sequence[bytes]) -> list[bool]:
        """Per token whether its message is locked by it now."""
        ...
