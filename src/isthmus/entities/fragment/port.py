"""The stores of fragments as entities and their registry use them.

What it is: the contract of `isthmus.entities.fragment.store`, which is above the engine, for those below it. What it is
not: the opening of stores, or their failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.window import Budget
from isthmus.entities.storage.journal import Journal
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import StoreError

__all__ = ["FragmentEngine", "FragmentStore", "FragmentStores"]

_M = TypeVar("_M", bound=Intake)


class FragmentEngine(Protocol):
    """The fragments in one store.

    Attributes:
        transfers: the transfer dead-letter queues, by the numbers of those whose they are.
        outbox: what leaves the store (`isthmus.entities.fragment.handover.Outbox`).
    """

    transfers: dict[int, Queue]
    outbox: Any

    def member(self, kind: type[_M], path: str, number: int, before_first: int) -> _M:
        """The fragment of a number, as the store has it; the one that exists already, if one does."""
        ...

    def forget(self, member: Intake) -> None:
        """Let go of a fragment under which nothing was stored."""
        ...

    def discard(self, member: Intake) -> None:
        """Stage the removal of all that a fragment has."""
        ...

    def refuse(self, error: StoreError) -> None:
        """Go down: what a fragment needs cannot be read."""
        ...

    def promise(self, on_durable: Callback, on_failed: Failure) -> None:
        """Call one of both once all that is staged or under way now is durable or has failed."""
        ...

    def stop_fan_out(self) -> None:
        """Let what topics have not copied yet wait for the next start."""
        ...


class FragmentStore(Protocol):
    """One store of fragments, opened or not."""

    @property
    def index(self) -> int:
        """Its place among the namespace's stores."""
        ...

    @property
    def engine(self) -> FragmentEngine | None:
        """None until it could be opened."""
        ...

    @property
    def journal(self) -> Journal | None:
        """None until it could be opened."""
        ...

    @property
    def failures(self) -> int:
        """How often it went down, or could not be opened."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether its fragments may be used."""
        ...

    @property
    def reason(self) -> str:
        """Why it is down."""
        ...


class FragmentStores(Protocol):
    """The stores of fragments of one namespace.

    Attributes:
        budget: the namespace's bound of messages in memory; set before the first store is opened.
        on_engine: told of each store when it could be opened, before its owner is.
        on_back: told of each store that has gone down or come up, or could not be opened, before others are.
    """

    budget: Budget | None
    on_engine: Callable[[FragmentStore], None]
    on_back: Callable[[FragmentStore], None]

    def __iter__(self) -> Iterator[FragmentStore]: ...

    def get(self, index: int) -> FragmentStore:
        """A store, opened if that can be done."""
        ...

    def journals(self) -> dict[str, Journal]:
        """The open stores by index, for a copy of all."""
        ...

    def tick(self, now_ms: int) -> int | None:
        """Do what time asks for in all of them; wall ms when to call again, None if nothing is waited for."""
        ...

    def close(self) -> None:
        """Commit what is staged and close them."""
        ...
