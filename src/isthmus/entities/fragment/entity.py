"""A partitioned entity as its senders see it, and the common part of all of its kinds.

What it is: sends, schedules and peeks given to their fragments, and counts over all fragments. What it
is not: the choice of a fragment (`slot`); checks of messages, which the fragment makes like any entity; receiving (`queue`).
Spec: docs/explanation/protocol.md, Entities, Sending.

Invariants:
    I1. Messages that are taken as a unit go to one fragment, all or none.
    I2. A message with a key whose fragment's store is down is refused.
    I3. No message is taken before the catalog's row of the entity is durable: every acknowledged message has an entity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Generic, Literal, TypeVar

from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.fragment.join import Join
from isthmus.entities.fragment.message_key import first_of, fragment_of, keys_of, place, runs
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.fragment.schedule import cancel, schedule
from isthmus.entities.fragment.slot import Choice, Slot
from isthmus.entities.member.peek import PEEK_BYTES
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import End
from isthmus.entities.queue.queue import Queue
from isthmus.entities.record.copy import is_copy
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidArgumentError,
    IsthmusError,
    MessageNotFoundError,
    ServerBusyError,
    StoreError,
)

__all__ = ["Partitioned"]

_M = TypeVar("_M", bound=Intake)


class Partitioned(Generic[_M]):
    """An entity in fragments.

    Args:
        path: canonical.
        number: of its first fragment.
        stores: of its fragments, in their order.
        limits: of the namespace.

    Attributes:
        is_deleted: whether it was deleted.
        is_durable: whether its row in the catalog is durable.
        refused_total: deliveries that were refused; counted by the broker.
        transfer_dead_letters: the transfer dead-letter queue, in the same fragments; None for a dead-letter queue.
    """

    # The difference between the numbers of two neighbouring fragments.
    _STEP = 3

    def __init__(self, path: str, number: int, stores: Sequence[FragmentStore], limits: Limits) -> None:
        self.path = path
        self.number = number
        self.slots: list[Slot[_M]] = [Slot(index, store) for index, store in enumerate(stores)]
        self.is_deleted = False
        self.is_durable = False
        self.requires_session = False
        self.refused_total = 0
        self.transfer_dead_letters: Partitioned[Queue] | None = None
        self.max_message_size_bytes = limits.max_message_size_bytes
        self._limits = limits
        self._status = EntityStatus.ACTIVE
        self._settings: dict[str, Any] | None = None
        self._choice = Choice(self.slots)
        self._when_durable: list[Callback] = []

    # As `isthmus.entities.port.Entity` has them.
    is_partitioned: Literal[True] = True
    takes_bodies = False

    # ---- start and end

    def fill(self, slot: Slot[_M], member: _M) -> None:
        """Put a fragment into its slot."""
        slot.member = member
        self.configure_slot(slot)

    def forward_parts(self, path: str | None, forward: Callable[[Any, Any], None]) -> None:
        """As `Member.forward_parts`."""

    def notify(self) -> None:
        """Call the listeners."""

    def set_durable(self) -> None:
        """The entity's row is durable."""
        self.is_durable = True
        if self.transfer_dead_letters is not None:
            self.transfer_dead_letters.set_durable()
        waiting, self._when_durable = self._when_durable, []
        for call in waiting:
            call()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call once the entity's row is durable; immediately, if it is."""
        if self.is_durable:
            call()
        else:
            self._when_durable.append(call)

    def configure(self, **settings: Any) -> None:
        """Take the settings of a description, for all fragments."""
        self._settings = settings
        self._status = settings["status"]
        self.requires_session = settings.get("requires_session", False)
        self.max_message_size_bytes = settings.get("max_message_size_bytes") or self._limits.max_message_size_bytes
        self._choice.detects = bool(settings.get("duplicate_window_ms"))
        for slot in self.slots:
            self.configure_slot(slot)

    def configure_slot(self, slot: Slot[_M]) -> None:
        """Apply the settings of the entity to a fragment."""
        member: Any = slot.member
        if member is None or self._settings is None:
            return
        # If its store refuses the read for it, the store is down, and its fragments get their settings when it is up again.
        with suppress(StoreError), member.context.staging.whole(begun=True) if slot.store.is_up else nullcontext():
            member.configure(**self._settings)

    @property
    def _members(self) -> Iterator[_M]:
        return (slot.member for slot in self.slots if slot.member is not None)

    @property
    def _usable(self) -> Iterator[_M]:
        return (member for slot in self.slots if (member := slot.usable) is not None)

    @property
    def is_whole(self) -> bool:
        """Whether the stores of all fragments are up."""
        return all(slot.usable is not None for slot in self.slots)

    def _check_open(self) -> None:
        if self.is_deleted:
            raise EntityNotFoundError(self.path)
        if not self.is_durable:
            raise ServerBusyError(f"'{self.path}' is being created; try again in a moment.")

    def _out(self, slot: Slot[_M]) -> ServerBusyError:
        return ServerBusyError(
            f"Partition {slot.index} of '{self.path}' is out of service: its store (store {slot.store.index}) is down. "
            "Send messages without a partition key, or try again later."
        )

    def _member(self, index: int) -> _M:
        """The fragment of an index.

        Raises:
            ServerBusyError: its store is down.
        """
        slot = self.slots[index]
        member = slot.usable
        if member is None:
            raise self._out(slot)
        return member

    # ---- sending

    def check_sendable(self) -> None:
        """Raise what `refusal` says, and ServerBusyError while it is being created."""
        self._check_open()
        if self._status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise EntityDisabledError(self.path, self._status)

    def runs(self, payloads: Sequence[Payload]) -> list[int]:
        """Lengths of the runs of messages that `accept` can take together."""
        return runs(payloads, len(self.slots), by_message_id=self._choice.detects)

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> _M:
        """The fragment that takes messages as a unit: that of the first one's key, else the next one in rotation.

        Args:
            payloads: encoded messages.
            preferred: the fragment of messages without a key, if one has been chosen for them.

        Raises:
            InvalidMessageError: their SessionIds or PartitionKeys differ, or one is not a message.
            ServerBusyError: the fragment's store is down; without a key, all stores are.
        """
        index = self._choice.by_keys([keys_of(payload) for payload in payloads])
        if index is None:
            index = preferred
        return self.chosen(index)

    def chosen(self, index: int | None) -> _M:
        """The fragment of an index, or the next one in rotation; errors as `placed`."""
        member = self._choice.next_up() if index is None else self._member(index)
        if member is None:
            raise ServerBusyError(f"All stores of '{self.path}' are down; try again later.")
        return member

    # ---- messages that another entity forwards

    @property
    def takes_sends(self) -> bool:
        """As `Intake.takes_sends`."""
        return not self.is_deleted and self._status not in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)

    def refusal(self) -> IsthmusError | None:
        """Why every message would be refused; None if some would be taken."""
        if self.is_deleted:
            return EntityNotFoundError(self.path)
        return None if self.takes_sends else EntityDisabledError(self.path, self._status)

    def ends(self, messages: Sequence[Parts], store: int) -> dict[End, list[int]]:
        """The ends for messages from a store, with the messages' positions; see `Choice.ends`."""
        return self._choice.ends(messages, store, self.number, self._STEP, is_open=self.is_durable)

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order, in one fragment; callbacks and errors as for any entity.

        Copies with duplicate keys go each to the fragment of its key, those of each fragment as a unit: when a unit fails,
        all are sent again, and those that were taken are dropped.

        Raises (nothing is then staged): as `Intake.accept` and `placed`.
        """
        self.check_sendable()
        if len(payloads) < 2 or not is_copy(payloads[0]):
            self.placed(payloads).accept(payloads, on_durable, on_failed)
            return
        by_index: dict[int | None, list[Payload]] = {}
        for payload in payloads:
            by_index.setdefault(self._choice.by_keys([keys_of(payload)]), []).append(payload)
        placed = [(self.chosen(index), part) for index, part in by_index.items()]
        for member, part in placed:
            member.examine(part)
        join = Join(len(placed), on_durable, on_failed)
        for member, part in placed:
            member.accept(part, join.durable, join.failed)

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[int]:
        """As `Intake.schedule`. Messages of different keys go to their fragments, each fragment's as a unit; where one fails, the messages that
        the others have taken are cancelled: their numbers were not returned yet.
        """
        self.check_sendable()
        free: _M | None = None
        placed: dict[_M, list[int]] = {}
        for at, (payload, _) in enumerate(messages):
            index = self._choice.by_keys([keys_of(payload)])
            if index is None:
                member = free = free or self.chosen(None)
            else:
                member = self._member(index)
            placed.setdefault(member, []).append(at)
        return schedule(messages, placed, on_durable, on_failed)

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """As `Intake.cancel_scheduled`; each fragment's as a unit.

        Raises:
            MessageNotFoundError: one of them is not scheduled; none is dropped then.
            ServerBusyError: the store of one of them is down.
        """
        self._check_open()
        by_fragment = self._by_fragment(sequences, "scheduled")
        by_member = {self._member(index): part for index, part in by_fragment.items()}
        for member, part in by_member.items():
            if missing := member.missing_scheduled(part):
                raise self._missing("scheduled", missing[0])
        cancel(by_member, on_durable, on_failed)

    def scheduled_in(self, sequences: Sequence[int]) -> _M:
        """The fragment of scheduled messages.

        Raises:
            InvalidArgumentError: they are in several fragments.
            MessageNotFoundError: one is in none.
            ServerBusyError: its store is down.
        """
        self._check_open()
        indexes = list(self._by_fragment(sequences, "scheduled"))
        if len(indexes) > 1:
            raise InvalidArgumentError(
                "The sequence numbers are of messages of several partitions; in a transaction, cancel those of one."
            )
        return self._member(indexes[0])

    def _by_fragment(self, sequences: Sequence[int], what: str) -> dict[int, list[int]]:
        parts: dict[int, list[int]] = {}
        for sequence in sequences:
            index = fragment_of(sequence)
            if not 0 <= index < len(self.slots):
                raise self._missing(what, sequence)
            parts.setdefault(index, []).append(sequence)
        return parts

    def _missing(self, what: str, sequence: int) -> MessageNotFoundError:
        return MessageNotFoundError(f"'{self.path}' has no {what} message with sequence number {sequence}")

    # ---- peeking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """As `Intake.peek`: by sequence number, and so one fragment after the other. Fragments that are down are skipped."""
        self._check_open()
        found: list[Payload] = []
        wanted = None if session_id is None else place(session_id, len(self.slots))
        for slot in self.slots[max(0, fragment_of(from_sequence)) :]:
            member = slot.usable
            if member is None or wanted not in (None, slot.index):
                continue
            with suppress(StoreError):  # its store is down now
                found += member.peek(max(from_sequence, first_of(slot.index)), count - len(found), session_id)
            # A fragment that returned as much as one read allows may have more.
            if len(found) >= count or sum(map(len, found)) >= PEEK_BYTES // 2:
                break
        return found

    def _sum(self, name: str) -> int:
        return sum(getattr(member, name) for member in self._members)

    @property
    def active_count(self) -> int:
        """Of all fragments, as are the other counts."""
        return self._sum("active_count")

    @property
    def scheduled_count(self) -> int:
        """Messages that are not due."""
        return self._sum("scheduled_count")

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        return self._sum("deferred_count")

    @property
    def size_bytes(self) -> int:
        """As stored."""
        return self._sum("size_bytes")

    @property
    def record_bytes(self) -> int:
        """As stored; a large message is stored like any other."""
        return self._sum("record_bytes")

    @property
    def taken_total(self) -> int:
        """Messages taken from senders since the start."""
        return self._sum("taken_total")

    @property
    def delivered_total(self) -> int:
        """Messages handed to receivers since the start."""
        return self._sum("delivered_total")

    @property
    def settled_total(self) -> int:
        """Messages completed since the start."""
        return self._sum("settled_total")

    @property
    def expired_total(self) -> int:
        """Messages that expired since the start."""
        return self._sum("expired_total")

    @property
    def last(self) -> int:
        """How many sequence numbers were assigned."""
        return sum(slot.member.last - first_of(slot.index) for slot in self.slots if slot.member is not None)

    @property
    def leaving_count(self) -> int:
        """Messages in the lines to other stores."""
        return self._sum("leaving_count")

    @property
    def accessed_at_ms(self) -> int:
        """When any fragment was last used."""
        return max((member.accessed_at_ms for member in self._members), default=0)

    def stored_bytes(self) -> int:
        """The size that counts towards the quota; each fragment has a quota of its own."""
        return sum(member.stored_bytes() for member in self._members)
