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
        transfers: the transfer dead-letter queues, by the number of the fragment that each belongs to.
        outbox: the messages that leave the store (`isthmus.entities.fragment.handover.Outbox`).
    """

    transfers: dict[int, Queue]
    outbox: Any

    def member(self, kind: type[_M], path: str, number: int, before_first: int) -> _M:
        """The fragment of a number, as the store has it; the existing object, if there is one."""
        ...

    def forget(self, member: Intake) -> None:
        """Drop a fragment under which nothing was stored."""
        ...

    def discard(self, member: Intake) -> None:
        """Stage the removal of all rows of a fragment."""
        ...

    def refuse(self, error: StoreError) -> None:
        """Go down: a read for a fragment failed."""
        ...

    def promise(self, on_durable: Callback, on_failed: Failure) -> None:
        """Call one of the two once all that is staged or in progress now is durable or has failed."""
        ...

    def stop_fan_out(self) -> None:
        """Leave waiting messages of topics for the next start."""
        ...


class FragmentStore(Protocol):
    """One store of fragments, opened or not."""

    @property
    def index(self) -> int:
        """Its index among the namespace's stores."""
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
        budget: the limit of messages in memory for the namespace; set before the first store is opened.
        on_engine: called with each store when it was opened, before its owner is.
        on_back: called with each store that went down or came up, or could not be opened, before the other callbacks.
    """

    budget: Budget | None
    on_engine: Callable[[FragmentStore], None]
    on_back: Callable[[FragmentStore], None]

    def __iter__(self) -> Iterator[FragmentStore]: ...

    def get(self, index: int) -> FragmentStore:
        """A store, opened if possible."""
        ...

    def journals(self) -> dict[str, Journal]:
        """The open stores by index, for a copy of all."""
        ...

    def tick(self, now_ms: int) -> int | None:
        """Do the due work in all of them; returns wall ms when to call again, None if nothing is pending."""
        ...

    def close(self) -> None:
        """Commit the staged changes and close them."""
        ...
