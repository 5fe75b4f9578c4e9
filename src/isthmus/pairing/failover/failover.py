"""Carries a fail-over out, phase by phase.

What it is: the work of each phase (`isthmus.pairing.state.state`), and the fence of the former active member. What it is not:
the order of the phases, the statuses that a phase needs (`isthmus.pairing.failover.wanted_status`), or the forwarding of applications
(`isthmus.pairing.alias.proxy`), which follows the state file.
Spec: docs/how-to/recover-from-a-disaster.md.

Invariants:
    I1. The state is on disk before the work of a phase begins, and the next phase is on disk only when the work is done.
    I2. The work of a phase may be repeated from its beginning.
    I3. An entity that others forward to is stopped only when no message waits in them: forwarded messages find it open.
    I4. No message is moved to an entity where duplicate detection may drop it: the MessageId of a message that is moved back is known there.
    I5. A planned fail-over that cannot empty the old member goes back and reports where messages are, unless the operator lets
        it leave messages behind.
    I6. Dead letters are moved once nothing can reverse the fail-over; those that the new member does not take, and deferred
        messages, stay and are reported.
    I7. The counts of moved and left messages are in the state: a process that continues the fail-over starts from them.
    I8. A planned fail-over that a later one of another process has overtaken ends at the active member of that one. The markers of that one
        are not replaced.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.errors import IsthmusError
from isthmus.pairing.broken import is_broken
from isthmus.pairing.failover.movable import detects, is_movable
from isthmus.pairing.failover.moved import Moved, given_up
from isthmus.pairing.failover.stop_layer import deliverable, feeds, stop_layers, with_topics
from isthmus.pairing.failover.wanted_status import GIVES_NONE, to_close, to_give, to_open, to_stop, to_take
from isthmus.pairing.pair_error import NotEmptyError, PairBrokenError
from isthmus.pairing.state.marker import is_later, is_overtaken, take_over
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import SupersededError
from isthmus.pairing.status import set_statuses, statuses_of
from isthmus.topology.pair.description import Description, Key, kept

__all__ = ["Failover", "Member"]

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_MARKER_SECONDS = 2.0
_FORWARD_SECONDS = 60.0
_DUE_SECONDS = 6.0
"""A scheduled message that is due within five seconds stays until it is (`isthmus.pairing.failover.mover`, I5)."""
_DROPS = "duplicate detection would drop messages that were at the other member before"


class Member(Protocol):
    """The operations of a namespace that a fail-over needs (`isthmus.connectors.servicebus.administration.pair.member`)."""

    alias: str

    def descriptions(self) -> list[Description]: ...

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]: ...

    def set_status(self, entity: Description, status: str) -> None: ...

    def map(self, work: Callable[[Any], Any], asked: Iterable[Any]) -> list[Any]: ...

    def read_marker(self, pair: str) -> Mapping[str, Any]: ...

    def write_marker(
        self, pair: str, value: Mapping[str, Any], *, unless: Callable[[Mapping[str, Any]], bool]
    ) -> bool: ...


class _OvertakenError(Exception):
    """Another process has made a later fail-over: the phase restarts from that one's marker."""


@dataclass(slots=True)
class Failover:
    """The fail-over of one pair.

    Args:
        save: writes a state to the disk.
        members: by alias; those that are needed.
        move: moves the remaining messages of an entity from the active member to the standby member.
        exclude: patterns of names that are not changed.
        note: called with each phase, as text.
        move_dead: moves the dead letters of a queue or subscription.
        check: called during waits and moves; raises if a forced fail-over has taken over.

    Attributes:
        moved: messages that were moved.
        left: path → messages that were left behind.
        moved_dead: dead letters that were moved.
        left_dead: path → dead letters that were left behind.
        left_deferred: path → deferred messages that were left behind.
        refused: alias and path → why an entity's status could not be set.
    """

    save: Callable[[PairState], None]
    members: Mapping[str, Member]
    move: Callable[[PairState, Description], Moved]
    exclude: tuple[str, ...] = ()
    note: Callable[[str], None] = lambda text: None
    move_dead: Callable[[PairState, Description], Moved] = lambda state, entity: Moved(0)
    check: Callable[[PairState], None] = lambda state: None
    moved: int = 0
    left: dict[str, int] = field(default_factory=dict)
    moved_dead: int = 0
    left_dead: dict[str, int] = field(default_factory=dict)
    left_deferred: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    _looked_at: float = field(default=0.0, init=False)

    def run(self, state: PairState) -> PairState:
        """Continue until the pair is steady.

        Raises:
            NotEmptyError: it went back.
            SupersededError: it ended at the active member of a later fail-over of another process.
            IsthmusError: a member is unreachable or refuses; the phase in the state can be repeated.
        """
        why: IsthmusError | None = None
        # The counts of an earlier process.
        self.moved, self.moved_dead = state.moved, state.moved_dead
        self.left, self.left_dead = dict(state.left), dict(state.left_dead)
        self.left_deferred = dict(state.left_deferred)
        while state.phase is not Phase.STEADY:
            if (after := self._taken_over(state)) is not state:
                if after.phase is not state.phase:
                    why = SupersededError(state.pair, after.epoch)
                state = after
                self.save(state)
            self.note(f"{state.phase}: {state.active} → {state.standby}, epoch {state.epoch}")
            try:
                state = self._work(state)
            except _OvertakenError:
                continue
            except IsthmusError as error:
                if error.retryable or not state.is_abortable:
                    raise
                # A permanent error would keep applications from both members.
                if not isinstance(error, NotEmptyError):  # whose text has this already
                    error.add_note(given_up(state, self.moved, self.moved_dead))
                why = error
                state = state.aborting(time.time())
            state = self._counted(state)
            self.save(state)
        if why is not None:
            raise why
        return state

    def _counted(self, state: PairState) -> PairState:
        """The state with the present counts of moved and left messages."""
        return replace(
            state,
            moved=self.moved,
            moved_dead=self.moved_dead,
            left=dict(self.left),
            left_dead=dict(self.left_dead),
            left_deferred=dict(self.left_deferred),
        )

    def _taken_over(self, state: PairState) -> PairState:
        """The state after decisions of other processes since it began; a member that does not answer has no influence.

        Raises:
            SupersededError: another process makes a later fail-over.
        """
        self._looked_at = time.monotonic()
        if state.is_insisting:  # later than all others, by the operator's decision
            return state
        after = state
        for member in self.members.values():
            try:
                marker = member.read_marker(state.pair)
            except IsthmusError:
                continue
            if is_overtaken(after, marker):
                raise SupersededError(state.pair, marker["epoch"])
            after = take_over(after, marker, time.time())
        return after

    def _check(self, state: PairState) -> None:
        """Check, during waits and moves, that no other process has made a later fail-over."""
        self.check(state)
        if time.monotonic() - self._looked_at >= _MARKER_SECONDS and self._taken_over(state) is not state:
            raise _OvertakenError

    def _write_marker(self, state: PairState, alias: str) -> None:
        """Write a state's marker at a member, unless its marker is of a later fail-over (I8).

        Raises:
            PairBrokenError: another process has broken the pair; nothing was changed, or the changes are reversed.
        """
        later: list[int] = []
        may_be_broken = state.is_told and state.phase in (Phase.STOPPING, Phase.STEADY)

        def is_newer(marker: Mapping[str, Any]) -> bool:
            if is_later(state, marker):
                later.append(marker["epoch"])
            elif not marker and may_be_broken and is_broken(self.members, state.pair, alias):
                raise PairBrokenError(state.pair)
            return bool(later)

        if not self.members[alias].write_marker(state.pair, state.marker, unless=is_newer):
            raise SupersededError(state.pair, later[0]) if state.is_insisting else _OvertakenError

    def _work(self, state: PairState) -> PairState:
        now = time.time()
        match state.phase:
            case Phase.STOPPING:
                self._stop(state)
                return state.advanced(now)
            case Phase.CONSUMING:
                self._consume(state)
                return state.advanced(now)
            case Phase.MOVING:
                self._move(state)
                return state.advanced(now)
            case Phase.FENCING:
                self.fence(state, state.active)
                return state.advanced(now)
            case Phase.OPENING:
                # Before a status is changed, as in `_stop`: another process would close the new member again.
                self._write_marker(state, state.standby)
                self.open(state, state.standby)
                switched = state.switched(time.time())
                # Before the alias forwards to it: a process elsewhere must see the new epoch at the new member.
                self._write_marker(switched, switched.active)
                self.open(state, state.standby)  # again: a process may have changed it before it saw the marker
                return replace(switched, is_told=True, spared=self.exclude)
            case Phase.REOPENING:
                self.open(state, state.active)
                reopened = state.reopened(now)
                # Other processes may learn of the epoch only from it; if the other member is unreachable, the next round writes its marker.
                try:
                    self._write_marker(reopened, state.active)
                except PairBrokenError:
                    return reopened  # the next round reports it, and changes neither member
                with contextlib.suppress(IsthmusError):
                    if state.fence_of(state.standby) is Fence.CLOSED:  # moved messages found it open in part
                        self.fence(state, state.standby)
                    self._write_marker(reopened, state.standby)
                return reopened
            case _:
                return state

    # ---- the phases

    def statuses(self, alias: str) -> dict[str, str]:
        """The entities of a member that are not Active, by path.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        return statuses_of(self._existing(alias).values())

    def _existing(self, alias: str) -> dict[Key, Description]:
        return kept(self.members[alias].descriptions(), self.exclude)

    def _stop(self, state: PairState) -> None:
        """Stop senders of the old member, outermost entities first, each layer once the one before has forwarded its messages."""
        # Before any status is changed: a process elsewhere would copy this change to the other member.
        for alias in self.members:
            self._write_marker(state, alias)
        member, existing = self.members[state.active], self._existing(state.active)
        for layer in stop_layers(existing):
            member.map(lambda wanted: member.set_status(*wanted), to_stop(layer))
            self._await_forwarded(state, [each for each in existing.values() if feeds(each, layer)])
        # Again: a process elsewhere may have read the former marker, and replaced it since.
        for alias in self.members:
            self._write_marker(state, alias)

    def _await_forwarded(self, state: PairState, feeders: list[Description]) -> None:
        """Wait until no message waits in entities that forward, except those scheduled for later, which are moved.

        Raises:
            NotEmptyError: messages wait for a minute, and may not be left behind.
        """
        deadline = time.monotonic() + _FORWARD_SECONDS
        while feeders:
            counts = self.members[state.active].counts(with_topics(feeders))
            left = {each.path: deliverable(counts.get(each.path)) for each in feeders}
            left = {path: count for path, count in left.items() if count}
            if not left:
                return
            if time.monotonic() >= deadline:
                if state.leaves:
                    return
                raise NotEmptyError(state.pair, state.active, left, "they are not forwarded")
            self._check(state)
            time.sleep(_POLL_SECONDS)

    def _consume(self, state: PairState) -> None:
        """Wait until receivers have emptied what they can: not messages scheduled for later, or in entities that an operator has suspended."""
        deadline = time.monotonic() + state.consume_ms / 1000
        given = [each for each in self._existing(state.active).values() if each.status not in GIVES_NONE]
        member = self.members[state.active]
        while any(map(deliverable, member.counts(given).values())) and time.monotonic() < deadline:
            self._check(state)
            time.sleep(_POLL_SECONDS)

    def _waiting(self, state: PairState, existing: Mapping[Key, Description]) -> dict[str, Counts]:
        counts = self.members[state.active].counts(existing.values())
        return {path: each for path, each in counts.items() if each.waiting}

    def _move(self, state: PairState) -> None:
        """Move the remaining messages of queues; messages that cannot be moved end the fail-over, or are left behind."""
        existing = self._existing(state.active)
        by_path = {each.path: each for each in existing.values()}
        waiting = self._waiting(state, existing)
        longest_ms = max((int(by_path[path].settings.get("lock_duration") or 0) for path in waiting), default=0)
        deadline = time.monotonic() + longest_ms / 1000 + _DUE_SECONDS
        why = next((f"{path}: {_DROPS}" for path in waiting if detects(by_path[path], existing)), "")
        movable = {path for path in waiting if is_movable(by_path[path], existing)}
        if movable and (state.leaves or movable == set(waiting)):
            self._make_movable(state, movable)
            is_refused = False
            while movable and not is_refused:
                moved_before = self.moved
                for path in sorted(movable):
                    self._check(state)
                    done = self._moved(state, by_path[path])
                    if done.first_refusal:
                        why, is_refused = f"{path}: {done.first_refusal}", True
                if self.moved > moved_before:
                    # A pass may take longer than the locks; messages due soon after it are moved by another one.
                    deadline = max(deadline, time.monotonic() + _DUE_SECONDS)
                # Messages that a receiver had when it was cut off are available again when their locks have expired.
                waiting = self._waiting(state, existing)
                movable = {path for path in waiting if is_movable(by_path[path], existing)}
                if time.monotonic() >= deadline:
                    break
                if movable:
                    time.sleep(_POLL_SECONDS)
        self.left = {path: counts.waiting for path, counts in waiting.items()}
        if self.left and not state.leaves:
            raise NotEmptyError(state.pair, state.active, self.left, why, self.moved, state.standby)
        self._move_dead(state, existing)

    def _moved(self, state: PairState, entity: Description, *, are_dead: bool = False) -> Moved:
        """One pass of the mover over an entity, counted (I7); a permanent error is a refusal."""
        error: IsthmusError | None = None
        try:
            done = (self.move_dead if are_dead else self.move)(state, entity)
        except IsthmusError as raised:
            error, done = raised, Moved(int(raised.attributes.get("moved", 0)), str(raised))
        if are_dead:
            self.moved_dead += done.moved
        else:
            self.moved += done.moved
        if done.moved:
            self.save(self._counted(state))
        if error is not None and error.retryable:
            raise error
        return done

    def _move_dead(self, state: PairState, existing: Mapping[Key, Description]) -> None:
        """Move dead letters (I6); count those that stay."""
        old = self.members[state.active]
        by_path = {each.path: each for each in existing.values()}
        paths = [path for path, counts in old.counts(existing.values()).items() if counts.dead]
        if queues := [path for path in paths if by_path[path].kind == "queue"]:
            self._make_movable(state, queues)
        for path in paths:
            done = self._moved(state, by_path[path], are_dead=True)
            if done.first_refusal:
                _log.warning("pair %s: dead letters of %s stay: %s", state.pair, path, done.first_refusal)
        counts = old.counts(existing.values())
        self.left_dead = {path: each.dead for path, each in counts.items() if each.dead}
        self.left_deferred = {path: each.other for path, each in counts.items() if each.other}

    def _make_movable(self, state: PairState, paths: Collection[str]) -> None:
        """Let the old member's entities give messages and the new one's take them, where an operator or a fence has closed them."""
        old, new = self.members[state.active], self.members[state.standby]
        old.map(lambda wanted: old.set_status(*wanted), to_give(self._existing(state.active), paths))
        new.map(lambda wanted: new.set_status(*wanted), to_take(self._existing(state.standby), paths))

    def fence(self, state: PairState, alias: str) -> None:
        """Close every entity of a member to applications.

        Raises:
            IsthmusError: the member is unreachable or refuses.
        """
        self._set(alias, to_close(self._existing(alias)))

    def open(self, state: PairState, alias: str) -> None:
        """Give the entities of a member the status that they had for applications."""
        self._set(alias, to_open(state, alias, self.members[alias].descriptions(), self.exclude))

    def _set(self, alias: str, wanted: Sequence[tuple[Description, str]]) -> None:
        """Set statuses. A refusal, e.g. because the target of forwarding is deleted, is reported, and does not keep others from being set."""
        for path, error in set_statuses(self.members[alias], wanted).items():
            self.refused[f"{alias}/{path}"] = str(error)
            self.note(f"! {alias}/{path} keeps its status: {error}")
            _log.warning("%s/%s keeps its status: %s", alias, path, error)
