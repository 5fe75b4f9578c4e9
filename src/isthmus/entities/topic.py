"""A topic: numbers messages and copies them to the subscriptions whose rules select them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Topic"]


class Topic:
    """Where publishers send; holds only scheduled messages itself.

    Attributes:
        path: canonical name.
        max_message_size_bytes: of one message.
    """

    path: str
    max_message_size_bytes: int

    def accept(
        self,
        payloads: Sequence[bytes],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """As `Queue.accept`; copies stand in the subscriptions atomically with the acceptance."""
        raise NotImplementedError

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> list[int]:
        """As `Queue.schedule`; rules run when the message is due."""
        raise NotImplementedError

    def cancel_scheduled(
        self,
        sequences: Sequence[int],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """As `Queue.cancel_scheduled`."""
        raise NotImplementedError

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[bytes]:
        """The topic's scheduled messages, as `Queue.peek`."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """Counts and sizes, for metrics."""
        raise NotImplementedError
