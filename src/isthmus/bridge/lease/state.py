"""The parts of a lease machine's state.

What it is: groups of values, each with the decisions that need nothing else: errors and the time of the next attempt, the state of the
end, and the counts. What it is not: the machine (`lease`).

Invariants:
    I1. Counts never fall.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from dataclasses import dataclass, field

from isthmus.bridge.backoff import Backoff
from isthmus.bridge.delivery_event import DIVERT, Disposition

__all__ = [
    "CLOSING_SECONDS",
    "DRAIN_SECONDS",
    "GIVE_BACK_SECONDS",
    "OPEN_LIMIT_SECONDS",
    "EndState",
    "LeaseCounts",
    "Phase",
    "SourceState",
    "Trouble",
]

# A target that failed: the first delay and the longest; longer where waiting alone does not help.
RETRY_SECONDS, RETRY_LIMIT_SECONDS = 0.5, 30.0
DRAIN_SECONDS = 5.0
FATAL_SECONDS, FATAL_LIMIT_SECONDS = 5.0, 60.0
# A lost source is opened again quickly: outstanding messages are locked only for a limited time.
REOPEN_SECONDS, REOPEN_LIMIT_SECONDS = 0.1, 5.0
# A source that does not answer `open` for so long is opened again. Connectors have time-outs of their own, which are shorter and give a
# better error.
OPEN_LIMIT_SECONDS = 120.0
# How long the end of a route waits for a target that is paused, or a source that is lost.
GIVE_BACK_SECONDS = 3.0
# How long it waits for settlements that have stopped coming.
CLOSING_SECONDS = 20.0


class Phase(enum.Enum):
    """The phase of a route's opening."""

    NEW = "new"
    OPENING = "opening"
    """The source is being opened."""
    CONNECTING = "connecting"
    """The source is open; the sink opens the target."""
    RUNNING = "running"
    WAITING = "waiting"
    """Nothing is open; the next opening comes later."""
    ENDED = "ended"


@dataclass(slots=True)
class LeaseCounts:
    """The counts of a route since the lease began, over all its openings."""

    settled: int = 0
    received_bytes: int = 0
    disposed: Counter[str] = field(default_factory=Counter)
    resent: int = 0
    resent_before: int = 0
    """In openings before this one."""
    set_aside: list[int] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Settled because the target acknowledged them."""
        return self.settled - self.disposed.total()

    def sent_again(self, messages: int) -> None:
        """Sets how many messages the sink has resent in this opening."""
        self.resent = max(self.resent, self.resent_before + messages)

    def new_opening(self) -> None:
        """The sink's counts begin at 0 again."""
        self.resent_before = self.resent


@dataclass(slots=True)
class Trouble:
    """Why a route is not carried now, and when it is tried again."""

    text: str = ""
    retry_at: float = math.inf
    failed: Backoff = field(default_factory=lambda: Backoff(RETRY_SECONDS, RETRY_LIMIT_SECONDS))
    fatal: Backoff = field(default_factory=lambda: Backoff(FATAL_SECONDS, FATAL_LIMIT_SECONDS))

    def settled(self, what: Disposition | None) -> None:
        """Messages were settled; completed, or diverted, they have reached an entity."""
        if what is None or what.kind == DIVERT:
            self.moved()

    def failed_now(self, text: str, is_fatal: bool, now: float) -> None:
        """An opening failed."""
        self.text = text
        self.retry_at = now + (self.fatal if is_fatal else self.failed).next()

    def moved(self) -> None:
        """A message has reached its target: the next failure counts as the first."""
        self.failed.reset()
        self.fatal.reset()


@dataclass(slots=True)
class SourceState:
    """The connection to the source, within one opening."""

    is_made: bool = False
    """Whether there is a source to close."""
    is_open: bool = False
    is_told: bool = False
    """Whether the sink was told of the opening."""
    identity: str = ""
    lost: str = ""
    reopen_at: float = math.inf
    open_by: float = math.inf
    """When an answer to what was opened last is overdue."""
    backoff: Backoff = field(default_factory=lambda: Backoff(REOPEN_SECONDS, REOPEN_LIMIT_SECONDS))
    blocked_by: int = 0
    note: str = ""

    def opened(self, identity: str) -> None:
        """The source is connected."""
        self.is_open, self.identity, self.lost = True, identity, ""
        self.reopen_at = self.open_by = math.inf

    def target_opened(self) -> None:
        """The sink has opened the target; the source may be disconnected by now."""
        if self.is_open:
            self.open_by = math.inf

    def blocked(self, position: int) -> None:
        """It waits for a message that another receiver has locked; 0: it no longer waits."""
        self.blocked_by = position

    def noted(self, text: str) -> None:
        """A note for the operator; empty: it no longer applies."""
        self.note = text

    def lost_now(self, text: str, now: float) -> None:
        """The connection is lost."""
        self.is_open, self.lost, self.blocked_by, self.note = False, text, 0, ""
        self.open_by = math.inf
        self.reopen_at = now + self.backoff.next()


@dataclass(slots=True)
class EndState:
    """The state of a route's end."""

    begun_at: float = math.inf
    progress_at: float = -math.inf
    is_exhausted: bool = False
    has_returned: bool = False
    """Whether messages were given back within this opening, which the source gives again."""
    may_be_refused: bool = False
    """Whether the source got a disposition and was not polled since: it is lost if its system does not support that disposition."""
    is_complete: bool = False
    """Whether everything that was at the source at the beginning is settled."""

    @property
    def is_begun(self) -> bool:
        """Whether the route ends."""
        return self.begun_at < math.inf

    def is_at_end(self, outstanding: int) -> bool:
        """Whether everything that was at the source at the beginning was delivered, and none of it is outstanding."""
        return self.is_exhausted and not outstanding

    def polled(self) -> None:
        """The source was polled: it has not refused a disposition."""
        self.may_be_refused = False

    def drains_until(self, is_quiet: bool) -> float:
        """Until when it waits for messages in transit from the source; `is_quiet`: there are none."""
        return -math.inf if is_quiet else self.begun_at + DRAIN_SECONDS

    def waits_until(self, outstanding: int, has_unsent: bool, is_paused: bool) -> float:
        """Until when it waits for outstanding messages.

        Args:
            outstanding: messages delivered and not settled.
            has_unsent: whether the source is lost, so that it may not have received settlements.
            is_paused: whether the target accepts nothing.
        """
        if has_unsent or (is_paused and outstanding):
            return self.begun_at + GIVE_BACK_SECONDS
        return max(self.begun_at, self.progress_at) + CLOSING_SECONDS if outstanding else -math.inf
