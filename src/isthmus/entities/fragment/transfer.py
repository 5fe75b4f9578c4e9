"""Sending via a partitioned entity to another one.

What it is: the choice of the fragment that messages go via: that of their via-partition-key, else that of the transaction
they belong to, else the next one in rotation. What it is not: the move from there (`isthmus.entities.transaction.transfer`).
Spec: docs/explanation/protocol.md, Forwarding, Transactions, Entities.

Invariants:
    I1. The PartitionKey of a message chooses its fragment at the destination, but not that of the entity between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isthmus.entities.error import InvalidMessageError
from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.fragment.message_key import place, runs_by, via_key_of
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import Target
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.entities.transaction.transfer import Transfer, Via

__all__ = ["PartitionedTransfer"]


class PartitionedTransfer(Via[Partitioned[Any], object]):
    """The route to a destination via a partitioned entity.

    Args:
        via: the entity between.
        path: of the destination.
        find: the queue or topic that has the path now; None if there is none.
        find_for: returns a function that finds it for the messages of a fragment.
    """

    def __init__(
        self,
        via: Partitioned[Any],
        path: str,
        find: Callable[[str], object | None],
        find_for: Callable[[Intake], Callable[[str], Target | None]],
    ) -> None:
        super().__init__(via, path, find)
        self._find_for = find_for
        self._transfers: dict[Intake, Transfer] = {}

    takes_bodies = False
    is_partitioned = True

    def runs(self, payloads: Sequence[Payload]) -> list[int]:
        """Lengths of the runs of messages that `accept` can take together."""
        return runs_by(payloads, via_key_of)

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> Transfer:
        """The route via the fragment that takes messages as a unit.

        Args:
            payloads: encoded messages.
            preferred: the fragment of messages without a key, if one has been chosen for them.

        Raises:
            InvalidMessageError: their keys differ, or one is not a message.
            ServerBusyError: the fragment's store is down; without a key, all stores are.
        """
        keys = {via_key_of(payload) for payload in payloads}
        if len(keys) > 1:
            raise InvalidMessageError(
                "messages that are sent together via a partitioned entity have the same TransactionPartitionKey"
            )
        key = next(iter(keys), None)
        member: Intake = self._via.chosen(preferred if key is None else place(key, len(self._via.slots)))
        transfer = self._transfers.get(member)
        if transfer is None:
            transfer = self._transfers[member] = Transfer(member, self._to, self._find_for(member), member.context)
        return transfer

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """As `Transfer.accept`, via one fragment; raises as `placed`, too."""
        self.check_sendable()
        self.placed(payloads).accept(payloads, on_durable, on_failed)
