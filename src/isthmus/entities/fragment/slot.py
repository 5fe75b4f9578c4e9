"""The slots of an entity's fragments, and the choice of the one that takes a message.

What it is: the choice by a message's keys, and in rotation over the fragments that are up where it has none. What it is not: the keys
(`message_key`), or the handling of a message in its fragment.
Spec: docs/explanation/protocol.md, Entities, Sending.

Invariants:
    I1. A message with a key goes to its fragment; one without a key skips fragments whose store is down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from isthmus.entities.error import InvalidMessageError
from isthmus.entities.fragment.message_key import Keys, keys_of_parts, place
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import End
from isthmus.entities.record.record import Parts

__all__ = ["Choice", "Slot"]

_M = TypeVar("_M", bound=Intake)


class Slot(Generic[_M]):
    """The slot of one fragment.

    Attributes:
        index: of the fragment.
        store: of the fragment.
        member: the fragment; None until its store could be opened.
    """

    __slots__ = ("index", "member", "store")

    def __init__(self, index: int, store: FragmentStore) -> None:
        self.index = index
        self.store = store
        self.member: _M | None = None

    @property
    def usable(self) -> _M | None:
        """The fragment, if its store is up."""
        return self.member if self.store.is_up else None


class Choice(Generic[_M]):
    """The choice among an entity's fragments.

    Args:
        slots: of the entity.

    Attributes:
        detects: whether duplicates are detected, so that equal MessageIds have to go to one fragment.
    """

    __slots__ = ("_next", "_slots", "detects")

    def __init__(self, slots: Sequence[Slot[_M]]) -> None:
        self._slots = slots
        self._next = 0
        self.detects = False

    def by_keys(self, keys: Sequence[Keys]) -> int | None:
        """The fragment of messages that go together; None where any fragment may take them.

        Raises:
            InvalidMessageError: their SessionIds or PartitionKeys differ, or contradict each other.
        """
        if not keys:
            return None
        group = keys[0].group
        for each in keys:
            if each.group != group:
                raise InvalidMessageError(
                    "messages that are sent together to a partitioned entity have the same SessionId or PartitionKey; "
                    f"these have {_named(group)} and {_named(each.group)}"
                )
        if group is None:
            group = keys[0].compared(by_message_id=self.detects)
        return None if group is None else place(group, len(self._slots))

    def next_up(self) -> _M | None:
        """The next fragment that is up; None if all stores are down."""
        slots = self._slots
        for _ in slots:
            slot = slots[self._next]
            self._next = (self._next + 1) % len(slots)
            member = slot.usable
            if member is not None:
                return member
        return None

    def near(self, store: int) -> int:
        """The fragment for messages without a key that arrive from a store: one in it, else the next one that is up.

        Args:
            store: its index among all stores, the catalog's first.
        """
        slots = self._slots
        rotation = [*range(self._next, len(slots)), *range(self._next)]
        up = [index for index in rotation if slots[index].usable is not None] or rotation
        index: int = next((index for index in up if slots[index].store.index + 1 == store), up[0])
        self._next = (index + 1) % len(slots)
        return index

    def ends(
        self, messages: Sequence[Parts], store: int, number: int, step: int, *, is_open: bool
    ) -> dict[End, list[int]]:
        """The ends for messages from a store, with their positions in order: those of one key to one fragment, those without a key
        together.

        Args:
            messages: in order.
            store: its index among all stores, the catalog's first.
            number: of the first fragment.
            step: the difference between the numbers of two neighbouring fragments.
            is_open: whether fragments may take messages now.

        Raises:
            InvalidMessageError: one has keys that contradict each other.
        """
        ends: dict[End, list[int]] = {}
        free: int | None = None
        for at, parts in enumerate(messages):
            index = self.by_keys([keys_of_parts(parts)])
            if index is None:
                index = free = self.near(store) if free is None else free
            slot = self._slots[index]
            to = slot.store.index + 1
            is_here = to == store and is_open and slot.usable is not None
            ends.setdefault(End(to, number + step * index, slot.member, is_here), []).append(at)
        return ends


def _named(group: str | None) -> str:
    return "none" if group is None else f"'{group[:64]}'"
