"""Sending via one entity to another.

What it is: the target of a sender's link with a transfer destination. The messages belong to the entity that they are sent
via, also within a transaction, and are moved to their destination in the same commit.
What it is not: a queue of its own; messages that cannot be moved are in the transfer dead-letter queue of the entity between.
Spec: docs/explanation/protocol.md, Forwarding, Transactions.

Invariants:
    I1. Messages are at the destination, or in the transfer dead-letter queue, or were refused; in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from isthmus.entities.member.context import Context
from isthmus.entities.queue import dead_letter
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import Target, reason_of
from isthmus.entities.record.amend import Stored
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import EntityDisabledError, EntityNotFoundError, IsthmusError

__all__ = ["Transfer", "Via"]


class Between(Protocol):
    """The entity between, whole or a fragment of one."""

    @property
    def path(self) -> str: ...

    @property
    def is_deleted(self) -> bool: ...

    @property
    def max_message_size_bytes(self) -> int: ...

    def check_sendable(self) -> None: ...


_Between = TypeVar("_Between", bound=Between)
_Found = TypeVar("_Found")


class Via(Generic[_Between, _Found]):
    """The common part of all routes to a destination via an entity.

    Args:
        via: the entity between.
        path: of the destination.
        find: the entity that has a path now; None if there is none.
    """

    def __init__(self, via: _Between, path: str, find: Callable[[str], _Found | None]) -> None:
        self.path = via.path
        self.refused_total = 0
        self._via = via
        self._to = path
        self._find = find

    @property
    def is_deleted(self) -> bool:
        """Whether the entity between was deleted."""
        return self._via.is_deleted

    @property
    def max_message_size_bytes(self) -> int:
        """Of one message."""
        return self._via.max_message_size_bytes

    def check_sendable(self) -> None:
        """Refuse if every message would be refused.

        Raises:
            EntityNotFoundError: one of the two was deleted.
            EntityDisabledError: the status of the one between forbids sending.
        """
        self._via.check_sendable()
        if self._find(self._to) is None:
            raise EntityNotFoundError(self._to)


class Transfer(Via[Intake, Target]):
    """The route to a destination via an entity.

    Args:
        via: the entity between.
        path: of the destination.
        find: the queue or topic that has the path now; None if there is none.
        context: of the namespace's entities.
    """

    def __init__(self, via: Intake, path: str, find: Callable[[str], Target | None], context: Context) -> None:
        super().__init__(via, path, find)
        self._context = context

    is_partitioned = False

    @property
    def stored(self) -> Intake:
        """The entity between: in a transaction the messages are its own."""
        return self._via

    def runs(self, payloads: Sequence[Payload]) -> list[int]:
        """Lengths of the runs of messages that `accept` can take together: all."""
        return [len(payloads)]

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> Transfer:
        """The participant that takes these messages in a transaction: itself."""
        del payloads, preferred
        return self

    @property
    def takes_bodies(self) -> bool:
        """Whether messages whose bodies are outside of the store can be kept."""
        return self._via.takes_bodies

    def reserve_room(self, size_bytes: int) -> None:
        """As of the entity between."""
        self._via.reserve_room(size_bytes)

    def release_room(self, size_bytes: int) -> None:
        """As of the entity between."""
        self._via.release_room(size_bytes)

    def examine(self, payloads: Sequence[Payload]) -> list[Parts]:
        """Check and parse messages; errors as `accept`."""
        self.check_sendable()
        return self._via.examine(payloads)

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """Why these messages would not be taken now; None if they would."""
        target = self._find(self._to)
        if target is None:
            return EntityNotFoundError(self._to)
        error = target.refusal_of(messages)
        # A disabled destination refuses no sender: the messages wait in the transfer dead-letter queue.
        return None if isinstance(error, EntityDisabledError) else error

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order; callbacks as for a queue.

        Raises (nothing is then staged): as a queue's ``accept``, for both entities.
        """
        messages = self.examine(payloads)
        error = self.refusal_of(messages)
        if error is not None:
            raise error
        with self._context.staging.whole():
            self.enter(messages, self._context.clock.wall_ms())
        self._context.staging.promise(on_durable, on_failed)

    def enter(self, messages: Sequence[Parts], now_ms: int) -> None:
        """Stage examined messages."""
        if not messages:
            return
        numbers = self._via.pass_numbers(len(messages))
        target = self._find(self._to)
        error = EntityNotFoundError(self._to) if target is None else target.refusal_of(messages)
        if target is not None and error is None:
            target.accept_moved(messages, numbers, now_ms, 1)
            return
        assert error is not None
        dead = [Stored(parts, number, now_ms, number, 1) for parts, number in zip(messages, numbers, strict=True)]
        dead_letter.store(
            self._context.transfer_dead_letters(self._via), dead, self._via.path, reason_of(error), str(error)
        )
