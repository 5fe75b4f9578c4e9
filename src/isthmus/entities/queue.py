"""A queue: also what a subscription and a dead-letter queue are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.entities.lock import Acquired

__all__ = ["Queue"]

Callback = Callable[[], None]
Failure = Callable[[Exception], None]


class Queue:
    """Messages in sequence order, each for one receiver.

    Attributes:
        path: canonical, e.g. ``orders``, ``flights/Subscriptions/audit``, each also with ``/$DeadLetterQueue``.
        requires_session: whether plain receivers are refused.
        max_message_size_bytes: of one message.
    """

    path: str
    requires_session: bool
    max_message_size_bytes: int

    def accept(
        self, payloads: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order. Exactly one of the callbacks comes, from the engine's
        ``end_commit`` or ``fail_commit`` (or from ``begin_commit`` if the store refuses the write).

        Raises (nothing is then staged): InvalidMessageError, MessageTooLargeError, QuotaExceededError,
            EntityDisabledError, SessionRequiredError, NotAllowedError (a dead-letter queue takes no sends).
        """
        raise NotImplementedError

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[int]:
        """Take (payload, due wall ms) pairs; their sequence numbers while scheduled. Errors as `accept`."""
        raise NotImplementedError

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Drop scheduled messages.

        Raises:
            MessageNotFoundError: one of them is not scheduled; none is dropped then.
        """
        raise NotImplementedError

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """Up to `limit` available messages in sequence order; None if there is none.

        With `lock` each is locked for the entity's lock duration. Without, each is deleted: send the payloads only in
        `on_durable`, or a kill may deliver them again.

        Raises:
            EntityDisabledError: the status forbids receiving.
        """
        raise NotImplementedError

    def complete(
        self, tokens: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> list[bool]:
        """Remove locked messages. One flag per token; False: the lock was lost, and nothing happened to the message.

        The callback comes also if all flags are False. The same holds for the other settlements.
        """
        raise NotImplementedError

    def abandon(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Give messages back with their delivery count raised; at MaxDeliveryCount they are dead-lettered."""
        raise NotImplementedError

    def release(self, tokens: Sequence[bytes]) -> list[bool]:
        """Give messages back at once, as if never delivered; needs no commit."""
        raise NotImplementedError

    def defer(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Set messages aside; from then on only `receive_deferred` gets them."""
        raise NotImplementedError

    def dead_letter(
        self,
        tokens: Sequence[bytes],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Move messages to the dead-letter queue.

        Raises:
            NotAllowedError: this is a dead-letter queue.
        """
        raise NotImplementedError

    def renew(self, tokens: Sequence[bytes]) -> list[int | None]:
        """Lock for a full lock duration from now; the new locked-until wall ms per token, None: lock lost."""
        raise NotImplementedError

    def receive_deferred(
        self,
        sequences: Sequence[int],
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired:
        """Deferred messages by sequence number, locked or deleted.

        Raises:
            MessageNotFoundError: one of them is not deferred, or locked by someone; none is taken then.
        """
        raise NotImplementedError

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[bytes]:
        """Messages of every state from a sequence number on, in order, without locking."""
        raise NotImplementedError

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """Delete up to `limit` unlocked active messages enqueued before a wall time; how many."""
        raise NotImplementedError

    @property
    def has_available(self) -> bool:
        """Whether `acquire` would find something (expired messages may make it find nothing all the same)."""
        raise NotImplementedError

    def add_listener(self, listener: Callback) -> None:
        """Call `listener` (from ``end_commit``, ``release``, ``tick``) whenever something became available."""
        raise NotImplementedError

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`; no error if unknown."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """Counts and sizes, for metrics."""
        raise NotImplementedError
