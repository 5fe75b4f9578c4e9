"""The state of a pair: its active member, and the progress of a fail-over.

What it is: the state as values, its transitions, and its JSON. Pure. What it is not: the effects of fail-overs of other
processes (`isthmus.pairing.state.marker`), the file (`isthmus.pairing.state.state_file`), or the work of a phase
(`isthmus.pairing.failover.failover`).

A planned fail-over:

    steady ─begin→ stopping → consuming → moving → fencing → opening ─switch→ steady
                      └─────────┴───abort───┘→ reopening → steady (the same member is active)

A forced one: `begin_forced` switches immediately, if the new member is open; else after `opening`, and can be given up until then.

Invariants:
    I1. The alias forwards to at most one member at any time, and to none from the time when receivers are stopped until
        the other member is open.
    I2. The epoch grows with each fail-over that begins, and never shrinks.
    I3. A former active member is fenced, or its fence is pending and is made as soon as it answers.
    I4. The work of each phase can be repeated; after a kill, a process continues with the phase in its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from isthmus.topology.pair.description import Key

__all__ = ["Fence", "PairState", "Phase", "key_of"]

VERSION = 1


class Phase(StrEnum):
    """The phase of a fail-over."""

    STEADY = "steady"
    STOPPING = "stopping"
    CONSUMING = "consuming"
    MOVING = "moving"
    FENCING = "fencing"
    OPENING = "opening"
    REOPENING = "reopening"


class Fence(StrEnum):
    """Whether a member's entities are closed to applications by their status."""

    OPEN = "open"
    PENDING = "pending"
    CLOSED = "closed"


_NEXT = {
    Phase.STOPPING: Phase.CONSUMING,
    Phase.CONSUMING: Phase.MOVING,
    Phase.MOVING: Phase.FENCING,
    Phase.FENCING: Phase.OPENING,
}
_ABORTABLE = (Phase.STOPPING, Phase.CONSUMING, Phase.MOVING)
_NOTHING_MOVED: Mapping[str, Any] = {"moved": 0, "moved_dead": 0, "left": {}, "left_dead": {}, "left_deferred": {}}
_BEFORE_MOVING = (Phase.STEADY, Phase.STOPPING, Phase.CONSUMING)
_LED_BY_OLD = (Phase.STEADY, Phase.STOPPING, Phase.CONSUMING, Phase.REOPENING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairState:
    """The state of one pair.

    Attributes:
        pair: its name.
        active: alias of the namespace that applications use.
        standby: alias of the other one.
        epoch: number of fail-overs that were begun, and one.
        phase: of the fail-over.
        is_forced: whether it is a forced one.
        is_beside: whether a forced one began during another fail-over, which may have changed statuses at the active member.
        is_told: whether the active member has the marker of the pair and of a forced fail-over; until then no other marker is followed.
        consume_ms: how long a planned one lets receivers empty the entities.
        leaves: whether a planned one continues although messages stay behind.
        statuses: path → status of the active member's entities that are not Active for applications, as they were when
            the pair was last steady.
        fences: alias → fence of each member.
        spared: patterns of names that were excluded when the standby member was fenced; None where it was not, or is not known.
        made: alias → paths that pairing made there.
        intended: paths of entities that pairing is about to make at the standby member.
        stopped: alias → path → former status of queues and topics there that are stopped to count their messages before they are deleted
            (`isthmus.pairing.keeper.stopped`). Those that were not deleted get it back.
        seen: path → messages of a member when it was last counted while it was active, without empty entities.
        seen_of: alias of that member.
        seen_at: when; wall seconds.
        changed_at: when the phase or the active member last changed; wall seconds.
        moved: messages that the planned fail-over has moved, up to the last entity that was completed.
        moved_dead: the same of dead letters.
        left: path → messages that it has left behind.
        left_dead: path → dead letters that it has left behind.
        left_deferred: path → deferred messages that it has left behind.
    """

    pair: str
    active: str
    standby: str
    epoch: int = 1
    phase: Phase = Phase.STEADY
    is_forced: bool = False
    is_beside: bool = False
    is_told: bool = False
    consume_ms: int = 0
    leaves: bool = False
    statuses: Mapping[str, str] = field(default_factory=dict)
    fences: Mapping[str, Fence] = field(default_factory=dict)
    spared: tuple[str, ...] | None = None
    made: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    intended: tuple[str, ...] = ()
    stopped: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    seen_of: str = ""
    seen_at: float = 0.0
    changed_at: float = 0.0
    moved: int = 0
    moved_dead: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    left_dead: Mapping[str, int] = field(default_factory=dict)
    left_deferred: Mapping[str, int] = field(default_factory=dict)

    def fence_of(self, alias: str) -> Fence:
        """The fence of a member."""
        return self.fences.get(alias, Fence.OPEN)

    def stopped_at(self, alias: str) -> Mapping[str, str]:
        """Path → former status of stopped entities at a member."""
        return self.stopped.get(alias, {})

    def seen_at_member(self, alias: str) -> tuple[Mapping[str, Mapping[str, int]], float]:
        """The last counts of a member's messages, and their time; empty and 0 if there are none, or another member was counted since."""
        return (self.seen, self.seen_at) if self.seen_of == alias else ({}, 0.0)

    @property
    def is_in_progress(self) -> bool:
        """Whether a fail-over is in progress."""
        return self.phase is not Phase.STEADY

    @property
    def is_abortable(self) -> bool:
        """Whether a planned fail-over is in progress that has fenced nothing yet."""
        return self.phase in _ABORTABLE

    @property
    def is_before_opening(self) -> bool:
        """Whether a planned fail-over is in progress that has not changed the new member yet."""
        return self.phase in _NEXT

    @property
    def leads_to(self) -> str:
        """Alias of the member that the alias forwards to; empty for none."""
        return self.active if self.phase in _LED_BY_OLD else ""

    @property
    def made_keys(self) -> frozenset[Key]:
        """Keys of entities that pairing made at the standby member; existing ones that it was about to make count."""
        return frozenset(key_of(path) for path in (*self.made.get(self.standby, ()), *self.intended))

    # ---- fail-over

    def begin(self, now: float, *, statuses: Mapping[str, str], consume_ms: int, leaves: bool) -> PairState:
        """A planned fail-over begins.

        Args:
            now: wall seconds.
            statuses: of the active member, before any of them is changed.
            consume_ms: see the attributes.
            leaves: likewise.

        Raises:
            InvalidArgumentError: another one is in progress.
        """
        if self.phase is not Phase.STEADY:
            raise InvalidArgumentError(f"pair '{self.pair}': a fail-over is in progress ({self.phase}) already")
        return replace(
            self,
            epoch=self.epoch + 1,
            phase=Phase.STOPPING,
            is_forced=False,
            is_told=True,
            consume_ms=consume_ms,
            leaves=leaves,
            statuses=dict(statuses),
            changed_at=now,
            **_NOTHING_MOVED,
        )

    def begin_forced(self, now: float, to: str = "") -> PairState:
        """A forced fail-over, from any phase: the other member becomes active without the old one's help.

        The other member has to be opened first if it is fenced, if entities were stopped to delete them, or if a planned one has begun to
        move: that may have changed statuses there.

        Args:
            now: wall seconds.
            to: alias of the member that is to be active; if a forced one has switched to it, or is about to, none begins. Empty for the other one.

        Raises:
            InvalidArgumentError: a fail-over from that member is in progress.
        """
        if to and to == self.target and (self.is_forced or not self.is_in_progress):
            return self
        begun = replace(
            self,
            epoch=self.epoch + 1,
            is_forced=True,
            is_beside=self.is_in_progress and (self.is_beside or not self.is_forced),
            is_told=False,
            phase=Phase.OPENING,
            changed_at=now,
            **_NOTHING_MOVED,
        )
        is_open = self.fence_of(self.standby) is Fence.OPEN and not self.stopped_at(self.standby)
        is_untouched = is_open and self.phase in _BEFORE_MOVING
        begun = begun.switched(now) if is_untouched else begun
        if to and to != begun.target:
            raise InvalidArgumentError(
                f"pair '{self.pair}': a fail-over from {to} is in progress ({self.phase}), which --force would complete to {begun.target}; "
                "--abort leads back"
            )
        return begun

    def advanced(self, now: float) -> PairState:
        """The next phase of a planned fail-over."""
        return replace(self, phase=_NEXT[self.phase], changed_at=now)

    def aborting(self, now: float) -> PairState:
        """Back to the state before the fail-over: for a planned one until it fences, for a forced one until the new member is open.

        Raises:
            InvalidArgumentError: it has not begun, or has gone too far.
        """
        if self.phase is Phase.REOPENING:
            return self
        if self.phase is Phase.OPENING and self.is_forced and not self.is_beside:
            # Nothing was done at the active member. The other one may be open in part.
            fence = Fence.OPEN if self.fence_of(self.standby) is Fence.OPEN else Fence.PENDING
            return self.with_fence(self.standby, fence).reopened(now)
        if not self.is_abortable and not (self.phase is Phase.OPENING and self.is_forced):
            what = (
                "none is in progress"
                if self.phase is Phase.STEADY
                else f"it is {self.phase} already: run failover again"
            )
            raise InvalidArgumentError(f"pair '{self.pair}': there is no fail-over to abort; {what}")
        return replace(self, phase=Phase.REOPENING, is_forced=False, is_told=True, changed_at=now)

    def reopened(self, now: float) -> PairState:
        """The abort is done."""
        return replace(self, phase=Phase.STEADY, is_forced=False, is_told=True, changed_at=now)

    def switched(self, now: float) -> PairState:
        """The other member is active from now on; the former one of a forced fail-over still has to be fenced."""
        old = Fence.PENDING if self.is_forced else Fence.CLOSED
        return replace(
            self,
            active=self.standby,
            standby=self.active,
            phase=Phase.STEADY,
            fences={self.standby: Fence.OPEN, self.active: old},
            spared=None,
            intended=(),
            changed_at=now,
        )

    def with_stopped(self, alias: str, paths: Mapping[str, str]) -> PairState:
        """Set the stopped entities of a member."""
        others = {other: stopped for other, stopped in self.stopped.items() if other != alias}
        return replace(self, stopped={**others, alias: dict(paths)} if paths else others)

    def with_fence(self, alias: str, fence: Fence) -> PairState:
        """Set a member's fence."""
        return replace(self, fences={**self.fences, alias: fence})

    @property
    def is_insisting(self) -> bool:
        """Whether the new member has no marker yet of a forced fail-over."""
        return self.is_forced and not self.is_told

    @property
    def target(self) -> str:
        """Alias of the member that is active, or will be at the end of the fail-over."""
        return self.active if self.phase in (Phase.STEADY, Phase.REOPENING) else self.standby

    @property
    def marker(self) -> dict[str, Any]:
        """The marker for the namespaces."""
        markers: dict[str, Any] = {
            "pair": self.pair,
            "epoch": self.epoch,
            "active": self.active,
            "standby": self.standby,
            "fenced": self.fence_of(self.standby) is not Fence.OPEN,
        }
        if self.is_in_progress:
            markers |= {"under_way": True, "forced": True} if self.is_forced else {"under_way": True}
        return markers

    # ---- entities that pairing made

    def intending(self, paths: Iterable[str]) -> PairState:
        """Pairing is about to make entities at the standby member."""
        return replace(self, intended=tuple(sorted({*self.intended, *paths})))

    @property
    def made_here(self) -> tuple[str, ...]:
        """Paths of entities that pairing made at the standby member."""
        return self.made.get(self.standby, ())

    def having_made(self, paths: Iterable[str]) -> PairState:
        """Pairing made entities under these paths at the standby member; it intends no more."""
        return replace(self, made={**self.made, self.standby: tuple(sorted(paths))}, intended=())

    # ---- JSON

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, found: Any) -> PairState:
        """The state that `to_dict` wrote.

        Raises:
            ValueError: the values are not valid.
        """
        if not isinstance(found, Mapping):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - to the reader of the file it is a wrong value
        if found.get("version") != VERSION:
            raise ValueError(f"version is {found.get('version')!r}, not {VERSION}")
        names = {each.name for each in fields(cls)}
        try:
            values = {name: value for name, value in found.items() if name in names}
            values["phase"] = Phase(values["phase"])
            values["fences"] = {alias: Fence(fence) for alias, fence in values["fences"].items()}
            values["made"] = {alias: tuple(paths) for alias, paths in values["made"].items()}
            values["intended"] = tuple(values["intended"])
            spared = values.get("spared")
            values["spared"] = None if spared is None else tuple(spared)
            values["stopped"] = {alias: dict(paths) for alias, paths in values.get("stopped", {}).items()}
            if not isinstance(values["epoch"], int) or not values["active"] or not values["standby"]:
                raise ValueError("a value is missing")
            return cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a value is missing or wrong: {error}") from None


def key_of(path: str) -> Key:
    """The key of a queue, topic or subscription by its path."""
    topic, _, subscription = path.lower().partition("/subscriptions/")
    return (topic, subscription) if subscription else (topic,)
