"""The target of an entity's ForwardTo or ForwardDeadLetteredMessagesTo, and the move of messages to it.

What it is: one hop. The messages are staged at the target, or in the line to its store, in the batch in which they leave,
or would have entered, their source, so that after a kill they are at one of the two, never at both or neither. What it is not: the handling of
messages that the target refuses (`relay`).
Spec: docs/explanation/protocol.md, Forwarding, Rules.

Invariants:
    I1. Each message is taken by the target or reported as refused, with the reason; the order is kept.
    I2. No message makes more than `MAX_HOPS` hops, restarts in between or not: circles end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from isthmus.entities.error import InvalidMessageError, SessionRequiredError, TooManyHopsError
from isthmus.entities.record.record import Parts
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    MessageTooLargeError,
    QuotaExceededError,
    StoreError,
)

__all__ = ["MAX_HOPS", "End", "Onward", "Target", "reason_of"]

# The service's limit: a message makes four hops, and is dead-lettered where it would need a fifth.
MAX_HOPS = 4

_REASONS: tuple[tuple[type[IsthmusError], str], ...] = (
    (TooManyHopsError, "MaxTransferHopCountExceeded"),
    (EntityNotFoundError, "MessagingEntityNotFound"),
    (EntityDisabledError, "MessagingEntityDisabled"),
    (QuotaExceededError, "QuotaExceeded"),
    (MessageTooLargeError, "MessageSizeExceeded"),
    (SessionRequiredError, "Session ID is null"),
    (InvalidMessageError, "InvalidMessage"),
    (StoreError, "BodyUnreadable"),
)
# The reasons for which every message of a group is refused alike.
_COMMON = (EntityDisabledError, EntityNotFoundError)


class Target(Protocol):
    """Takes forwarded messages: a queue or topic in the source's store, or the route to one in other stores."""

    @property
    def takes_sends(self) -> bool:
        """As `Intake.takes_sends`."""
        ...

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """As `Intake.refusal_of`."""
        ...

    def accept_moved(self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, hops: int) -> None:
        """As `Intake.accept_moved`."""
        ...


class End(NamedTuple):
    """A queue or topic, or one of its fragments, to which messages go.

    Attributes:
        to: index of the store among all, the catalog's first.
        number: of the queue or topic there.
        member: the object; None until its store could be opened.
        is_here: whether it can take messages in the batch of the store that they leave.
    """

    to: int
    number: int
    member: Target | None
    is_here: bool


class Onward:
    """The forwarding target of one entity.

    Args:
        path: of the target, as it was created.
        find: the queue or topic that has this path now; None if there is none.
    """

    __slots__ = ("_find", "path")

    def __init__(self, path: str, find: Callable[[str], Target | None]) -> None:
        self.path = path
        self._find = find

    @property
    def is_open(self) -> bool:
        """Whether the target exists and takes messages; it may be full all the same."""
        target = self._find(self.path)
        return target is not None and target.takes_sends

    def move(
        self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, hops: int
    ) -> list[tuple[int, IsthmusError]]:
        """Stage messages at the target.

        Args:
            messages: in order.
            origins: per message the sequence number where it first entered.
            now_ms: enqueued time at the target.
            hops: how often they were forwarded so far.

        Returns:
            The messages that it refused, by index, with the reasons.
        """
        if hops >= MAX_HOPS:
            return [(index, TooManyHopsError(self.path)) for index in range(len(messages))]
        target = self._find(self.path)
        if target is None:
            return [(index, EntityNotFoundError(self.path)) for index in range(len(messages))]
        error = target.refusal_of(messages)
        if error is None:
            target.accept_moved(messages, origins, now_ms, hops + 1)
            return []
        if len(messages) == 1 or isinstance(error, _COMMON):
            return [(index, error) for index in range(len(messages))]
        failed: list[tuple[int, IsthmusError]] = []
        for index, parts in enumerate(messages):
            failed += [(index, why) for _, why in self.move([parts], [origins[index]], now_ms, hops)]
        return failed


def reason_of(error: IsthmusError) -> str:
    """The dead-letter reason of a message that could not be forwarded."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), error.code)
