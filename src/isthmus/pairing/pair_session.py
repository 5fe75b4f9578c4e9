"""One declared pair with its members, its state file and the operations on them.

What it is: the functions of the verbs of `isthmus pair`, without options and tables. What it is not: a decision; those are in
`isthmus.topology.pair` and `isthmus.pairing.state.state`. Imports for some verbs only are inside of functions: a forced fail-over must start fast.
A little over 400 lines: the verbs share the members, the lock and the state file.

Invariants:
    I1. A forced fail-over is on disk before any member is queried, or its secret read.
    I2. Before the pair is changed, the namespaces' markers are read: of two state folders the one with the older state follows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.pairing.alias.address import addresses_of
from isthmus.pairing.broken import is_broken
from isthmus.pairing.pair_error import NotInStepError, PairBrokenError, SameNamespaceError, StoppingError
from isthmus.pairing.state.marker import follow, is_behind, is_overtaken
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import NotPairedError, Stamp, StateFile, SupersededError
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.pair.declaration import Pair

if TYPE_CHECKING:
    from isthmus.connectors.servicebus.administration.pair.member import PairMember
    from isthmus.pairing.alias.proxy import Lead
    from isthmus.pairing.failover.failover import Failover
    from isthmus.pairing.failover.moved import Moved
    from isthmus.pairing.keeper.keeper import Keeper
    from isthmus.pairing.keeper.round import Comparison, Consent, Round
    from isthmus.topology.pair.description import Description
    from isthmus.topology.pair.difference import Step
    from isthmus.transport import Client

__all__ = ["PairSession", "find_pair"]

_WAIT_SECONDS = 60.0


def find_pair(federation: Federation, name: str) -> Pair:
    """A pair by its name.

    Raises:
        InvalidArgumentError: the file has no pair of this name.
    """
    found = federation.pairs.get(name)
    if found is None:
        known = ", ".join(federation.pairs) or "none; write pairs: {contoso: {primary: ewr, secondary: jfk}}"
        raise InvalidArgumentError(f"{federation.file} declares no pair '{name}'; it has: {known}")
    return found


class PairSession:
    """A pair, for the duration of one verb.

    Args:
        federation: with absolute paths.
        pair: one of its pairs.
        folder: state folder of the file.
    """

    def __init__(self, federation: Federation, pair: Pair, folder: Path) -> None:
        self._federation = federation
        self.pair = pair
        self.file = StateFile(folder, pair.name)
        self.is_stopping: Callable[[], bool] = lambda: False
        """Whether a fail-over that waits or moves is to end; it can be continued."""

    @cached_property
    def members(self) -> Mapping[str, PairMember]:
        """The namespaces by alias.

        Raises:
            SecretError, ConnectionStringError: a connection cannot be resolved.
            SameNamespaceError: both connections are to one host: the fence of a member would close the active one.
        """
        from isthmus.connectors.servicebus.administration.pair.member import PairMember

        found = {alias: PairMember(self._federation.namespaces[alias]) for alias in self.pair.members}
        first, second = found.values()
        if first.endpoint.lower() == second.endpoint.lower():
            for member in found.values():
                member.close()
            raise SameNamespaceError(self.pair.name, first.alias, second.alias)
        return found

    @cached_property
    def keeper(self) -> Keeper:
        """The keeper of the pair."""
        from isthmus.pairing.keeper.keeper import Keeper

        return Keeper(self.members, self.file.keep, self.pair.exclude)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "members" in vars(self):
            for member in self.members.values():
                member.close()

    # ---- create, sync, break

    def create(self) -> PairState:
        """Begin the pairing, or return the state of the existing one.

        Raises:
            InvalidArgumentError: the state is of other members.
            SameNamespaceError: both members are one.
            AdministrationError: a member does not answer.
        """
        self.keeper.check_distinct(self.pair.name)
        with self.file.locked(_WAIT_SECONDS):
            try:
                return self.state()
            except NotPairedError:
                pass
            fresh = PairState(
                pair=self.pair.name,
                active=self.pair.primary,
                standby=self.pair.secondary,
                epoch=0,
                changed_at=time.time(),
            )
            # The namespaces may have newer markers: a state folder was lost, or this is another machine.
            markers = [member.read_marker(self.pair.name) for member in self.members.values()]
            for marker in markers:
                # If another process makes one, the state before that.
                known = {**marker, "epoch": marker["epoch"] - 1} if is_overtaken(fresh, marker) else marker
                fresh = follow(fresh, known, time.time())
            fresh = replace(fresh, epoch=max(1, fresh.epoch))
            self.file.save(fresh)
            if any(is_overtaken(fresh, marker) for marker in markers):
                return fresh  # which is not settled: the markers belong to that process
            return self.keeper.settle(fresh)

    def state(self) -> PairState:
        """The state, which must be of the members that the file declares.

        Raises:
            NotPairedError, StateFileError: there is none, or it cannot be read.
            InvalidArgumentError: it is of other members.
        """
        state = self.file.load()
        if {state.active, state.standby} != set(self.pair.members):
            raise InvalidArgumentError(
                f"pair '{self.pair.name}' was created of {state.active} and {state.standby}, and the file says "
                f"{' and '.join(self.pair.members)}; break the pair with the file as it was, then create it again"
            )
        return state

    def compare(self, consent: Consent | None = None) -> tuple[PairState | None, Comparison]:
        """The differences between the members, also before the pair is created; changes nothing.

        Raises:
            AdministrationError: a member does not answer.
        """
        try:
            state = self.state()
        except NotPairedError:
            self.keeper.check_distinct(self.pair.name)
            first, second = self.pair.members
            return None, self.keeper.compare(PairState(pair=self.pair.name, active=first, standby=second), consent)
        return state, self.keeper.compare(state, consent)

    def sync(
        self,
        consent: Consent | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[PairState, Round]:
        """Make one round; the arguments are those of `Keeper.make`.

        Raises:
            InvalidArgumentError: a fail-over is in progress.
            SameNamespaceError: both members are one: a connection has been changed since the pair was created.
            IsthmusError: a member does not answer, or the state cannot be saved.
        """
        self.keeper.check_distinct(self.pair.name)
        with self.file.locked(_WAIT_SECONDS):
            state = self.keeper.follow(self.state())
            if state.phase is not Phase.STEADY:
                raise _in_progress(state)
            state = self.keeper.settle(state)
            return self.keeper.make(state, self.keeper.observe(state, consent), consent, on_step, is_stopped)

    def break_up(self, *, is_forced: bool = False) -> tuple[PairState, dict[str, str]]:
        """End the pairing: open the fenced member, remove the markers and the state.

        Args:
            is_forced: continue even if a member does not answer: it may be lost permanently.

        Returns:
            The former state; alias → why a member was not changed.

        Raises:
            InvalidArgumentError: a fail-over is in progress.
            IsthmusError: a member does not answer; the pair is as before, and the verb can be repeated.
        """
        from isthmus.pairing.keeper.stopped import restore

        left = dict[str, str]()
        with self.file.locked(_WAIT_SECONDS):
            state = self.state()
            with contextlib.suppress(PairBrokenError):  # by an interrupted attempt, or another machine
                state = self.keeper.follow(state)
            if state.phase is not Phase.STEADY:
                raise _in_progress(state)
            fenced = state
            for alias in (state.standby, state.active):
                try:
                    if state.fence_of(alias) is not Fence.OPEN and alias == state.standby:
                        self._failover().open(state, alias)
                        state = state.with_fence(alias, Fence.OPEN)
                    state = restore(self.members[alias], state)
                    self.members[alias].delete_marker(state.pair)
                except IsthmusError as error:
                    if not is_forced:
                        raise
                    left[alias] = str(error)
            # Statuses and markers that a round elsewhere has set until it could see that no member has a marker of the pair.
            for alias in (each for each in (state.standby, state.active) if each not in left):
                try:
                    if fenced.fence_of(alias) is not Fence.OPEN and alias == state.standby:
                        self._failover().open(fenced, alias)
                    if self.members[alias].read_marker(state.pair):
                        self.members[alias].delete_marker(state.pair)
                except IsthmusError as error:
                    if not is_forced:
                        raise
                    left[alias] = str(error)
            self.file.remove()
            return state, left

    # ---- fail-over

    def force(self, to: str = "") -> PairState:
        """Switch immediately, whatever the active member answers; returns the state then, which may still need `finish`.

        Args:
            to: as for `PairState.begin_forced`.

        Raises:
            InvalidArgumentError: that is not a member, or a fail-over from it is in progress.
            IsthmusError: the state cannot be read or saved.
        """
        if to and to not in self.pair.members:
            raise InvalidArgumentError(
                f"pair '{self.pair.name}' has no member '{to}'; write {' or '.join(self.pair.members)}"
            )
        self.state()
        return self.file.change(lambda state: state.begin_forced(time.time(), to))

    def fail_over(
        self, *, consume_ms: int, leaves: bool, note: Callable[[str], None] = lambda text: None
    ) -> tuple[PairState, Failover]:
        """Make a planned fail-over, or the rest of an interrupted one; returns the state, and the counts of moved and left messages.

        Args:
            consume_ms: how long receivers may empty the active member; an interrupted one keeps its own value.
            leaves: continue although messages stay behind; also for an interrupted one that began without it.
            note: called with each phase, as text.

        Raises:
            SameNamespaceError: as `sync`; nothing was begun.
            NotInStepError: the standby member lacks something; nothing was begun.
            SupersededError: another machine has made a fail-over, or makes one.
            NotEmptyError: messages would stay behind; the old member is active again.
            IsthmusError: a member is unreachable or refuses; the same call continues there.
        """
        with self.file.locked(_WAIT_SECONDS):
            state = self.keeper.follow(self.state())
            work = self._failover(note)
            if state.phase is Phase.REOPENING:  # of one that went back: the caller requests another one
                state, work = work.run(state), self._failover(note)
            if state.phase is Phase.STEADY:
                self.keeper.check_distinct(self.pair.name)
                state = self.keeper.settle(state)
                state, found = self.keeper.make(state, self.keeper.observe(state))
                apart = [str(step) for step, _ in found.failed] + [str(each) for each in found.drift.conflicts]
                if apart:
                    raise NotInStepError(state.pair, state.standby, apart[0], len(apart))
                statuses = work.statuses(state.active)
                # A fail-over of another machine writes its markers before it changes a status.
                if (followed := self.keeper.follow(state)) is not state:
                    raise SupersededError(state.pair, followed.epoch)
                state = state.begin(time.time(), statuses=statuses, consume_ms=consume_ms, leaves=leaves)
                self.file.keep(state)
            elif leaves and not state.leaves:
                state = replace(state, leaves=True)
                self.file.keep(state)
            state = work.run(state)
            self._write_markers(state)
            return state, work

    def abort(self, note: Callable[[str], None] = lambda text: None) -> PairState:
        """Give a fail-over up: a planned one, or a forced one whose new member does not open.

        Raises:
            InvalidArgumentError: none is in progress, or it has gone too far.
            SupersededError: another machine has made the one that was forced here.
            IsthmusError: the member does not answer.
        """
        with self.file.locked(_WAIT_SECONDS):
            self.keeper.check_not_made(self.state())
            state = self.file.change(lambda state: state.aborting(time.time()))
            if state.is_in_progress:
                return self._failover(note).run(state)
            with contextlib.suppress(IsthmusError):  # its new member: most likely the reason of the abort
                return self.keeper.settle(state)
            return self.file.load()

    def waiting_at(self, alias: str) -> dict[str, int]:
        """Path → messages that wait at a member.

        Raises:
            IsthmusError: it does not answer.
        """
        from isthmus.topology.pair.description import kept

        member = self.members[alias]
        counts = member.counts(kept(member.descriptions(), self.pair.exclude).values())
        return {path: each.waiting for path, each in counts.items() if each.waiting}

    def finish(self, wait_seconds: float = _WAIT_SECONDS, note: Callable[[str], None] = lambda text: None) -> PairState:
        """Do the pending work: the rest of a fail-over, and the fence of the former active member.

        Raises:
            IsthmusError: a member does not answer; `isthmus pair run` retries.
        """
        with self.file.locked(wait_seconds):
            state = self.keeper.follow(self.state())
            state = self._failover(note).run(state)
            return self.keeper.settle(self.keeper.restore(state))

    def _write_markers(self, state: PairState) -> None:
        """Write the markers; a member that does not answer gets its marker in the next round, and one whose marker is of a later fail-over
        keeps that, for others to see. A pair that was broken meanwhile gets no marker.
        """
        for alias, member in self.members.items():

            def is_kept(marker: Mapping[str, Any], alias: str = alias) -> bool:
                return is_behind(state, marker, time.time()) or (
                    not marker and is_broken(self.members, state.pair, alias)
                )

            with contextlib.suppress(IsthmusError):
                member.write_marker(state.pair, state.marker, unless=is_kept)

    def _failover(self, note: Callable[[str], None] = lambda text: None) -> Failover:
        from isthmus.pairing.failover.failover import Failover

        return Failover(self.file.keep, self.members, self._move, self.pair.exclude, note, self._move_dead, self._check)

    def _check(self, state: PairState) -> None:
        if self.is_stopping():
            raise StoppingError(state.pair)
        self.file.check(state)

    def _move(self, state: PairState, entity: Description) -> Moved:
        from isthmus.pairing.failover.mover import move

        in_sessions = bool(entity.settings.get("requires_session"))
        return self._between(state, entity, partial(move, in_sessions=in_sessions, is_topic=entity.kind == "topic"))

    def _move_dead(self, state: PairState, entity: Description) -> Moved:
        from isthmus.pairing.failover.mover import move_dead_letters

        return self._between(state, entity, move_dead_letters)

    def _between(self, state: PairState, entity: Description, work: Callable[[Client, Client, str], Moved]) -> Moved:
        """The result of a mover, with a connection to each member."""
        from isthmus.replication.namespace_clients import NamespaceClients

        with NamespaceClients(self._federation, "isthmus-pair") as clients:
            source = clients.open(Endpoint(state.active, entity.path))
            try:
                target = clients.open(Endpoint(state.standby, entity.path))
                try:
                    return work(source, target, entity.path)
                finally:
                    target.close(1.0)
            finally:
                source.close(1.0)

    # ---- the alias

    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Host and port of each member, for the alias; errors as `addresses_of`."""
        return addresses_of(self._federation, self.pair)

    def lead_reader(self, addresses: Mapping[str, tuple[str, int]]) -> Callable[[], Lead]:
        """A function that returns the lead of the alias, by the state file; it reads the file only when it has changed."""
        from isthmus.pairing.alias.proxy import Lead

        known: list[tuple[Stamp, bool, Lead]] = []

        def lead() -> Lead:
            stamp = self.file.stamp()
            if not known or known[0][:2] != (stamp, True):
                is_sure = stamp.is_sure(time.time_ns())
                state = self.state()
                alias = state.leads_to
                host, port = addresses.get(alias, ("", 0))
                known[:] = [(stamp, is_sure, Lead(state.epoch, alias, host, port))]
            return known[0][2]

        return lead


def _in_progress(state: PairState) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"pair '{state.pair}': a fail-over is in progress ({state.phase}); end it first: isthmus pair failover {state.pair}"
    )
