"""Keeps the standby member of a pair in step with the active one.

What it is: one round: follow the decisions of other processes, do pending work, compare, change, count. What it is not:
a fail-over (`isthmus.pairing.failover.failover`), or the waiting between rounds (`isthmus.pairing.pair_run`).
A little over 400 lines: each stage of a round is only correct because of the states that the stages before it have saved.

Invariants:
    I1. A round changes nothing at the active member but the marker, and the status of entities that it has itself stopped there (`stopped`).
    I2. The entities that pairing is about to make are on disk before they are made, so that after a kill they are known as made by pairing.
    I3. A refused change does not keep the others from being made; it is reported, and retried in the next round.
    I4. Changes that a fail-over of another process makes in progress are not copied to the standby member, and its markers are not
        replaced.
    I5. Nothing is deleted unless the active member, queried for it by its name just before, reports that it does not exist: a list of
        its entities may be incomplete.
    I6. An entity that was made under an alias is not deleted, or replaced, in another namespace that the alias names since.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus.connectors.servicebus.administration.pair.holds_messages import HoldsMessagesError
from isthmus.connectors.servicebus.administration.pair.member import PairMember
from isthmus.errors import IsthmusError
from isthmus.pairing.broken import is_broken
from isthmus.pairing.failover.fence import close
from isthmus.pairing.keeper.round import Comparison, Consent, Round
from isthmus.pairing.keeper.stopped import restore, to_be_stopped, with_former_status
from isthmus.pairing.pair_error import PairBrokenError, SameNamespaceError, StillHeldError
from isthmus.pairing.state.marker import follow, insist, is_behind, is_overtaken
from isthmus.pairing.state.state import Fence, PairState, key_of
from isthmus.pairing.state.state_file import SupersededError
from isthmus.pairing.status import set_statuses, statuses_of
from isthmus.topology.pair.description import CLOSED, Key, closed, kept
from isthmus.topology.pair.difference import Step, difference

__all__ = ["Keeper"]

_log = logging.getLogger(__name__)
_NOT_BEGUN = IsthmusError("the round was stopped")


class Keeper:
    """Keeps one pair in step. Its caller holds the pair's lock.

    Args:
        members: by alias.
        save: writes a state to the disk.
        exclude: patterns of names that are not changed.
    """

    def __init__(
        self, members: Mapping[str, PairMember], save: Callable[[PairState], None], exclude: tuple[str, ...] = ()
    ) -> None:
        self._members = members
        self._save = save
        self._exclude = exclude

    def check_distinct(self, pair: str) -> None:
        """Check that the members are two namespaces.

        Raises:
            SameNamespaceError: they are one.
            AdministrationError: one of them does not answer.
        """
        first, second = self._members.values()
        if first.endpoint.lower() == second.endpoint.lower() or first.identity() == second.identity():
            raise SameNamespaceError(pair, first.alias, second.alias)

    def follow(self, state: PairState) -> PairState:
        """The state after decisions of other processes; a member that does not answer has no influence.
        During a fail-over no member is queried: it follows no other, and its old member may hang.

        Raises:
            SupersededError: another process makes a fail-over, which this one must not disturb.
            PairBrokenError: another process has broken the pair.
        """
        if state.is_insisting:
            state = self._insist(state)
        if state.is_insisting or state.is_in_progress:
            return state
        by_alias = dict[str, Mapping[str, Any]]()
        for alias, member in self._members.items():
            with contextlib.suppress(IsthmusError):
                by_alias[alias] = member.read_marker(state.pair)
        markers = list(by_alias.values())
        if state.is_told and len(markers) == len(self._members) and not any(markers):
            raise PairBrokenError(state.pair)
        followed = (
            self._of_another(state) if by_alias.get(state.standby) == {} and by_alias.get(state.active) else state
        )
        for marker in markers:
            if not marker.get("under_way"):
                followed = follow(followed, marker, time.time())
        for marker in markers:
            if is_overtaken(followed, marker):
                raise SupersededError(state.pair, marker["epoch"])
        if followed is not state:
            self._save(followed)
        return followed

    @staticmethod
    def _of_another(state: PairState) -> PairState:
        """The state if the standby member does not know of the pair: entities made under its alias may be in another namespace (I6)."""
        if not state.is_told or not (state.made_here or state.intended):
            return state
        _log.warning(
            "pair %s: %s has no marker of it, as another namespace would: none of its entities counts as made by pairing",
            state.pair,
            state.standby,
        )
        return state.having_made(())

    def outdated(self, state: PairState) -> str:
        """The news in the members' markers that a state does not have, as text; empty if there is none, or they do not answer."""
        markers = list[Mapping[str, Any]]()
        for member in self._members.values():
            with contextlib.suppress(IsthmusError):
                markers.append(member.read_marker(state.pair))
        if state.is_in_progress or state.is_insisting:
            return ""
        if state.is_told and len(markers) == len(self._members) and not any(markers):
            return str(PairBrokenError(state.pair))
        later = [marker for marker in markers if is_behind(state, marker, time.time())]
        if not later:
            return ""
        last = max(later, key=lambda marker: int(marker["epoch"]))
        what = (
            "makes a fail-over from" if last.get("under_way") else "made a fail-over, after which the active member is"
        )
        return f"another machine {what} {last['active']} (epoch {last['epoch']}); isthmus pair run and sync follow it"

    def _insist(self, state: PairState) -> PairState:
        """The state of a forced fail-over, made later than the new member's marker; no other member is queried, as it may hang."""
        try:
            marker = self._members[state.target].read_marker(state.pair)
        except IsthmusError:
            return state
        insisting = insist(state, marker, time.time())
        if insisting is not state:
            self._save(insisting)
        return insisting

    def check_not_made(self, state: PairState) -> None:
        """Check that no other machine has made the fail-over that is forced here and not done.

        Raises:
            SupersededError: one has; the former active member is fenced.
        """
        for member in self._members.values() if state.is_insisting and state.is_in_progress else ():
            marker: Mapping[str, Any] = {}
            with contextlib.suppress(IsthmusError):
                marker = member.read_marker(state.pair)
            if marker.get("active") == state.target and not marker.get("under_way"):
                raise SupersededError(state.pair, int(marker["epoch"]))

    def settle(self, state: PairState) -> PairState:
        """Write the active member's marker, make the pending fence, and write the other member's marker.

        Raises:
            SupersededError: a member's marker is of a later fail-over; it is kept, for others to see.
            PairBrokenError: another process has broken the pair; no marker of it is written again.
            AdministrationError: a member does not answer, or refuses.
        """
        unanswered: IsthmusError | None = None
        try:
            self._write_marker(state, state.active)  # first: a lost member must not delay it
        except IsthmusError as error:
            # A member with a marker may be unreachable for a time: the other one, which applications may reach, is fenced all the same.
            if isinstance(error, SupersededError | PairBrokenError) or not state.is_told:
                raise
            unanswered = error
        if not state.is_told:
            state = replace(state, is_told=True)
            self._save(state)
        if state.fence_of(state.standby) is Fence.PENDING:
            member, later = self._members[state.standby], list[IsthmusError]()

            def has_overtaken() -> bool:
                marker = member.read_marker(state.pair)
                later.extend(self._later(state, state.standby, marker))
                return bool(later)

            if not close(member, self._exclude, state.statuses, has_overtaken):
                raise later[0]
            state = replace(state.with_fence(state.standby, Fence.CLOSED), spared=self._exclude)
            self._save(state)
        if unanswered is not None:
            raise unanswered
        self._write_marker(state, state.standby)
        return state

    def _write_marker(self, state: PairState, alias: str) -> None:
        later: list[IsthmusError] = []

        def is_later(marker: Mapping[str, Any]) -> bool:
            later.extend(self._later(state, alias, marker))
            return bool(later)

        if not self._members[alias].write_marker(state.pair, state.marker, unless=is_later):
            raise later[0]

    def _later(self, state: PairState, alias: str, marker: Mapping[str, Any]) -> Iterator[IsthmusError]:
        """Why a member's marker is not replaced, or followed by a change there: another process has decided since."""
        if is_behind(state, marker, time.time()):
            yield SupersededError(state.pair, int(marker["epoch"]))
        elif not marker and state.is_told and is_broken(self._members, state.pair, alias):
            yield PairBrokenError(state.pair)

    def compare(self, state: PairState, consent: Consent | None = None) -> Comparison:
        """The differences between the members. Needs no lock.

        Raises:
            AdministrationError: a member does not answer.
        """
        found = self._members[state.standby].begin_descriptions()  # both answer at the same time
        try:
            active = kept(self._members[state.active].descriptions(), self._exclude)
        except BaseException:
            found.cancel()  # else reads accumulate at a slow standby member, one for each attempt
            raise
        standby = kept(found.result(), self._exclude)
        wanted = closed(active) if state.fence_of(state.standby) is not Fence.OPEN else active
        may = consent is not None and consent.foreign
        drift = difference(wanted, standby, made=state.made_keys, may_delete_foreign=may)
        return Comparison(drift, statuses_of(active.values()), frozenset(standby))

    def observe(self, state: PairState, consent: Consent | None = None) -> Comparison:
        """A comparison for `make`, of members that no fail-over changes meanwhile (I4).

        Raises:
            SupersededError: a fail-over has begun elsewhere, or was made.
            AdministrationError: a member does not answer.
        """
        compared = self.compare(state, consent)
        if compared.drift.steps or compared.statuses != state.statuses:
            followed = self.follow(state)  # a fail-over writes its marker before it changes a status
            if followed is not state:
                raise SupersededError(state.pair, followed.epoch)
        return compared

    def make(
        self,
        state: PairState,
        compared: Comparison,
        consent: Consent | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[PairState, Round]:
        """Bring the standby member in step; call it while the pair is steady.

        Args:
            state: that of the comparison.
            compared: just now.
            consent: what the operator allows.
            on_step: called with each step that was made.
            is_stopped: whether to begin no further step.

        Raises:
            SupersededError: a fail-over has begun.
            PairBrokenError: another process has broken the pair; entities closed since are open again.
            AdministrationError: a member does not answer.
            StateFileError: the disk refuses; nothing more is made.
        """
        began, drift = time.monotonic(), compared.drift
        found = Round(drift)
        if compared.statuses != state.statuses:
            state = replace(state, statuses=compared.statuses)
            self._save(state)
        to_create = [step.entity for step in drift.steps if step.action == "create"]
        if creations := [entity.path for entity in to_create if entity.kind != "rule"]:
            state = state.intending(creations)
            self._save(state)
        member = self._members[state.standby]
        stopped = to_be_stopped(state, drift)
        state = self.restore(state, stopped)
        stopped = {**state.stopped_at(state.standby), **stopped}  # with the statuses that could not be restored
        if stopped != state.stopped_at(state.standby):
            state = state.with_stopped(state.standby, stopped)
            self._save(state)
        replaced = {entity.key for entity in to_create}
        try:
            for group in drift.groups:
                if is_stopped():
                    found.pending += group
                    continue
                self._save(state)  # ends the work if a fail-over has begun meanwhile
                if (followed := self.follow(state)) is not state:  # or elsewhere
                    raise SupersededError(state.pair, followed.epoch)
                # An entity that was to be replaced and stays, e.g. since it has messages, can be neither created nor filled.
                stays = {step.entity.key for step, _ in found.failed if step.action == "delete"}
                possible = tuple(
                    with_former_status(step, stopped)
                    for step in group
                    if not any(step.entity.key[: len(key)] == key for key in stays)
                )
                deletions = [each for each in possible if each.action == "delete" and each.entity.key not in replaced]
                kept = self._still_existing(state, deletions, found)
                possible = tuple(each for each in possible if each.entity.key not in kept)
                may_empty = consent is not None and consent.messages
                self._make(member, possible, found, on_step, is_stopped, with_messages=may_empty)
            if found.done and state.is_told and is_broken(self._members, state.pair):
                raise PairBrokenError(state.pair)
        except PairBrokenError:
            self._open_again(state, found.done)
            raise
        created = {step.entity.path for step in found.done if step.action == "create"}
        # Of the entities that an earlier process intended, the existing ones were made by it.
        present = {path for path in (*state.intended, *state.made_here) if key_of(path) in compared.existing}
        deleted = {step.entity.path for step in found.done if step.action == "delete"}
        settled = deleted | {step.entity.path for step, error in found.failed if isinstance(error, HoldsMessagesError)}
        after = state.having_made((present - deleted) | created)
        after = after.with_stopped(
            state.standby, {path: status for path, status in stopped.items() if path not in settled}
        )
        if after != state:
            state = after
            self._save(state)
        found.seconds = time.monotonic() - began
        return state, found

    def _open_again(self, state: PairState, done: Sequence[Step]) -> None:
        """Open the entities that a round has closed at the standby member, which another process has opened as it broke the pair."""
        statuses = {path.lower(): status for path, status in state.statuses.items()}
        closed_now = [
            step.entity
            for step in done
            if step.entity.status == CLOSED.get(step.entity.kind, "")
            and (step.action == "create" or "status" in step.changed)
        ]
        wanted = [(entity, statuses.get(entity.path.lower(), "Active")) for entity in closed_now]
        set_statuses(self._members[state.standby], wanted)

    def _still_existing(self, state: PairState, deletions: Sequence[Step], found: Round) -> set[Key]:
        """Keys of entities that the active member has after all (I5); their deletions have failed."""
        active = self._members[state.active]
        existing = active.map(lambda step: active.holds(step.entity), deletions)
        kept_back = [step for step, exists in zip(deletions, existing, strict=True) if exists]
        found.failed += [(step, StillHeldError(f"{active.alias}/{step.entity.path}")) for step in kept_back]
        return {step.entity.key for step in kept_back}

    def restore(self, state: PairState, exempt: Collection[str] = ()) -> PairState:
        """Restore the former status of entities that earlier rounds stopped to delete, and that are not deleted any more (`stopped.restore`).

        Args:
            state: that of the pair.
            exempt: paths at the standby member that are deleted now.

        Raises:
            AdministrationError: a member does not answer.
            StateFileError: the disk refuses.
        """
        for alias in tuple(state.stopped):
            after = restore(self._members[alias], state, exempt if alias == state.standby else ())
            if after != state:
                state = after
                self._save(state)
        return state

    @staticmethod
    def _make(
        member: PairMember,
        group: tuple[Step, ...],
        found: Round,
        on_step: Callable[[Step], None],
        is_stopped: Callable[[], bool],
        *,
        with_messages: bool,
    ) -> None:
        def make(step: Step) -> IsthmusError | None:
            if is_stopped():
                return _NOT_BEGUN
            try:
                member.make(step, with_messages=with_messages)
            except IsthmusError as error:
                return error
            return None

        for step, error in zip(group, member.map(make, group), strict=True):
            if error is None:
                found.done.append(step)
                on_step(step)
            elif error is _NOT_BEGUN:
                found.pending.append(step)
            elif error.retryable and not isinstance(error, HoldsMessagesError):
                raise error  # the member is unreachable: the next round continues
            else:
                found.failed.append((step, error))

    def count(self, state: PairState) -> dict[str, dict[str, int]]:
        """The waiting messages of the active member: a forced fail-over reports them as possibly lost.

        Raises:
            AdministrationError: the member does not answer.
        """
        return self._counted(state.active)

    def left_behind(self, state: PairState) -> dict[str, dict[str, int]]:
        """The messages of a standby member that is fenced: no receiver gets them before a fail-back. An open one has copies, which are in use.

        Raises:
            AdministrationError: the member does not answer.
        """
        if state.fence_of(state.standby) is not Fence.CLOSED:
            return {}
        return {path: counts for path, counts in self._counted(state.standby).items() if any(counts.values())}

    def _counted(self, alias: str) -> dict[str, dict[str, int]]:
        member = self._members[alias]
        counts = member.counts(kept(member.descriptions(), self._exclude).values())
        return {path: each._asdict() for path, each in counts.items()}
