"""The objects that the entities of one store share: group commit, clock, limits, calendar, bodies and budgets.

What it is: one object, made by the registry (`isthmus.entities.registry`) and given to every entity. What it is not: the
entities, or the lines of messages to other stores, of which only the contract is here (`StoreOutbox`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from isthmus.clock import Clock
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.queue.calendar import Calendar
from isthmus.entities.queue.window import Budget
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Blobs
from isthmus.entities.storage.blob_file import BlobFiles
from isthmus.entities.storage.staging import Staging
from isthmus.entities.topic.fan_out import FanOut

__all__ = ["Context", "StoreOutbox"]


class StoreOutbox(Protocol):
    """The outbox of one store (`isthmus.entities.fragment.handover.Outbox`)."""

    @property
    def index(self) -> int:
        """The store's index among all."""
        ...

    @property
    def context(self) -> Context:
        """Of the entities in the store."""
        ...

    def stage(
        self,
        to: int,
        target: int,
        path: str,
        source: Any,
        messages: Sequence[Parts],
        origins: Sequence[int],
        now_ms: int,
        hops: int,
        *,
        is_via: bool,
    ) -> None:
        """Stage messages in the line to another store."""
        ...


class Context:
    """The objects that the entities of one namespace share."""

    __slots__ = (
        "allocate",
        "blobs",
        "budget",
        "calendar",
        "clock",
        "fan_out",
        "leaving",
        "limits",
        "outbox",
        "random_bytes",
        "sessions",
        "staging",
        "transfer_dead_letters",
        "wake",
    )

    def __init__(
        self,
        staging: Staging,
        clock: Clock,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        wake: Callable[[Any, int], None],
        transfer_dead_letters: Callable[[Any], Any],
        blob_files: BlobFiles | None = None,
    ) -> None:
        self.staging = staging
        self.blobs = Blobs(staging, blob_files)
        self.clock = clock
        self.limits = limits
        self.random_bytes = random_bytes
        self.wake = wake
        self.transfer_dead_letters = transfer_dead_letters
        self.calendar = Calendar(staging)
        # Numbers for parts of an entity, and the parts by number; see `session.directory`.
        self.allocate: Callable[[int], int] = lambda count: 0
        self.sessions: dict[int, Any] = {}
        self.budget = Budget(limits.live_tail_bytes)
        # The messages in lines to other stores, by the number of their source: count and bytes.
        self.leaving: dict[int, tuple[int, int]] = {}
        self.outbox: StoreOutbox | None = None
        self.fan_out = FanOut(clock.monotonic)
