"""The routes that a sink carries.

What it is: the open handles, their pools of targets, their deadlines, and their claims; which of them have work. A route whose steps
divert messages has a handle for its target, with the route's number, and one for each divert target, with a negative number that is not
sent to the reader (`diverting`).
What it is not: threads, the connection to the reader, or the end of the lease (`sender`).

Invariants:
    I1. The cost grows with the handles that have work, not with the open ones.
    I2. A route that fails, or whose target cannot be made, does not affect the others.
    I3. Rows of a handle that is not open are dropped and counted: the reader has released them.
    I4. The handles of one route are opened, closed and failed together.
    I5. A fault of the connections of one kind fails the routes with a target of that kind, and no others.
    I6. Refused messages of a target are remembered from one opening of its route to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from isthmus.bridge.deadlines import Deadlines
from isthmus.bridge.host.sender.diverting import Diverted, DivertingRoute, name_of
from isthmus.bridge.host.sender.error import ClaimUnconfirmedError, DivertUnknownError, TargetUnavailableError
from isthmus.bridge.host.sender.handle import Reports, TargetHandle
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.host.sender.target_pools import TargetPools
from isthmus.bridge.port import Connector, Target
from isthmus.bridge.refusal_memory import RefusalMemories
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError

__all__ = ["SenderRoutes"]


class SenderRoutes:
    """The routes of one sink.

    Args:
        connectors: the connector of a kind.
        reports: gets the handles' reports.

    Attributes:
        pools: the connections to their targets.
        dropped: rows that came for handles that are not open.
    """

    def __init__(self, connectors: Callable[[str], Connector], reports: Reports) -> None:
        self.pools = TargetPools(connectors)
        self.dropped = 0
        self._reports = reports
        self._handles: dict[int, TargetHandle] = {}
        self._claims: dict[str, set[int]] = {}
        self._deadlines: Deadlines[int] = Deadlines()
        self._ready: dict[int, bool] = {}  # handles to step; whether their targets have answers
        self._changed: set[int] = set()
        self._awaiting: set[int] = set()
        self._reported: dict[int, dict[str, Any]] = {}
        self._diverting: dict[int, DivertingRoute] = {}  # by handle
        self._memories = RefusalMemories()
        self._last_key = 0

    # ---- routes

    def open(self, number: int, spec: RouteSpec, origin_identity: str, now: float) -> None:
        """Opens a route; the reports tell when it is ready or has failed."""
        specs = {number: spec}
        names: dict[int, str] = {}
        for name, end in spec.diverts.items():
            self._last_key -= 1
            specs[self._last_key] = replace(spec, target=end, diverts={})
            names[self._last_key] = name
        targets: dict[int, Target] = {}
        try:
            for key, each in specs.items():
                targets[key] = self.pools.target(key, each, origin_identity)
        except IsthmusError as error:
            self._give_up(targets)
            self._reports.failed(number, error, not error.retryable)
            return
        except Exception as error:  # noqa: BLE001 - a connector's fault; the other routes go on
            self._give_up(targets)
            text = f"'{spec.name}': {type(error).__name__}: {error}"
            self._reports.failed(number, TargetUnavailableError(text), True)
            return
        route = DivertingRoute(number, spec.name, spec.diverted_from, names, self._reports) if names else None
        for key, each in specs.items():
            divert = f"{each.target.alias}: divert target {names[key]}" if key in names else ""
            memory = self._memories.of(each, names.get(key, ""))
            self._handles[key] = TargetHandle(key, each, targets[key], route or self._reports, now, divert, memory)
            if route is not None:
                self._diverting[key] = route
            if spec.claim:
                self._claims.setdefault(spec.claim, set()).add(key)
            self._ready[key] = True
            self._awaiting.add(key)
        for key in specs:
            self._handles[key].open()

    @staticmethod
    def _give_up(targets: Mapping[int, Target]) -> None:
        for target in targets.values():
            with suppress(Exception):  # it was never open
                target.close()

    def close(self, number: int) -> None:
        """The reader has closed a handle."""
        if number in self._handles:
            self._close_route(number)

    def _close_route(self, number: int) -> None:
        """Closes the handles of a route; those that have failed are closed already."""
        route = self._diverting.get(number)
        for key in (number,) if route is None else route.handles:
            handle = self._handles.get(key)
            if handle is not None:
                self._forget(handle)
                handle.close()

    def set_clock(self, number: int, offset_ms: int) -> None:
        """The wall time of the source's system minus monotonic time."""
        route = self._diverting.get(number)
        for key in (number,) if route is None else route.handles:
            handle = self._handles.get(key)
            if handle is not None:
                handle.clock_offset_ms = offset_ms

    def add(self, number: int, part: Part) -> None:
        """Rows came."""
        handle = self._handles.get(number)
        if handle is None:
            self.dropped += part.rows
            return
        if part.diverted:
            diverted, part = part.diverted, part._replace(diverted=())
            if not self._divert(handle, diverted, part.clock_offset_ms) or not part.rows:
                return
        handle.add(part)
        self._ready.setdefault(number, False)

    def _divert(self, handle: TargetHandle, rows: Sequence[Diverted], clock_offset_ms: int | None) -> bool:
        """Hands diverted rows to their targets; returns whether the route continues."""
        route = self._diverting.get(handle.number)
        found: dict[int, list[Diverted]] = {}
        for row in rows:
            key = route.keys.get(name_of(row[1])) if route is not None else None
            if key is None:
                handle.fail(DivertUnknownError(handle.spec.name, name_of(row[1])), is_fatal=True)
                self._close_route(handle.number)
                return False
            found.setdefault(key, []).append(row)
        for key, some in found.items():
            assert route is not None
            self._handles[key].add(route.part(some, clock_offset_ms))
            self._ready.setdefault(key, False)
        return True

    def fail_claim(self, claim: str) -> None:
        """Fails the routes of a claim that another run may hold now."""
        for number in tuple(self._claims.get(claim, ())):
            handle = self._handles.get(number)
            if handle is None:
                continue  # another handle of its route has failed
            handle.fail(ClaimUnconfirmedError(handle.spec.name, claim))
            self._close_route(number)

    def _forget(self, handle: TargetHandle) -> None:
        number, claim = handle.number, handle.spec.claim
        del self._handles[number]
        if claim:
            self._claims[claim].discard(number)
            if not self._claims[claim]:
                del self._claims[claim]
        self._deadlines.forget(number)
        self._ready.pop(number, None)
        self._changed.discard(number)
        self._awaiting.discard(number)
        self._reported.pop(number, None)
        route = self._diverting.pop(number, None)
        self._memories.closed(handle.spec, "" if route is None else route.names.get(number, ""))

    # ---- the loop

    @property
    def has_ready(self) -> bool:
        """Whether `step` has work now."""
        return bool(self._ready)

    @property
    def is_target_awaited(self) -> bool:
        """Whether any route can do nothing before its target's next answer."""
        return bool(self._awaiting)

    @property
    def is_busy(self) -> bool:
        """Whether any row is not finished; checks every handle."""
        return any(handle.is_busy for handle in self._handles.values())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the rows that wait for their targets; checks every handle."""
        return sum(handle.waiting_bytes for handle in self._handles.values())

    def deadline(self, now: float) -> float:
        """When `step` is due even without events."""
        return min(self._deadlines.next(), self.pools.deadline(now))

    def step(self, ready: Mapping[int, int], now: float) -> None:
        """Does the work that can be done now.

        Args:
            ready: descriptors on which something happened.
            now: monotonic seconds.
        """
        steps, self._ready = self._ready, {}
        for number in self.pools.service(ready, now):
            steps[number] = True
        for number in self._deadlines.due(now):
            steps[number] = True
        for number, has_events in steps.items():
            handle = self._handles.get(number)
            if handle is None:
                continue
            handle.step(now, has_events)
            if handle.has_failed:
                self._close_route(number)
            else:
                self._deadlines.set(number, handle.due)
                self._changed.add(number)
                (self._awaiting.add if handle.awaits_target else self._awaiting.discard)(number)
        self.pools.flush()
        for kind, error in self.pools.take_faults().items():
            self._fail_kind(kind, error)
            self.pools.close_faulty()

    def _fail_kind(self, kind: str, error: Exception) -> None:
        """Fails the routes with a target in a faulty pool; they are opened again."""
        for number in [key for key, each in self._handles.items() if each.spec.target.kind == kind]:
            handle = self._handles.get(number)
            if handle is not None:  # another handle of its route has failed
                text = f"'{handle.spec.name}': a fault at the connections: {type(error).__name__}: {error}"
                handle.fail(TargetUnavailableError(text))
                self._close_route(number)

    def close_all(self, *, in_good_order: bool) -> None:
        """Ends all connections."""
        for handle in tuple(self._handles.values()):
            self._forget(handle)
            handle.close()
        self.pools.close(in_good_order=in_good_order)

    # ---- reports

    @property
    def has_changed(self) -> bool:
        """Whether counts may have changed."""
        return bool(self._changed)

    def changes(self) -> dict[str, dict[str, Any]]:
        """The counts that changed since the last call, by handle."""
        changes = {}
        for number in {self._number(key) for key in self._changed}:
            counts = self._counts(number)
            if counts != self._reported.get(number):
                self._reported[number] = counts
                changes[str(number)] = counts
        self._changed.clear()
        return changes

    def _number(self, key: int) -> int:
        """The reader's handle for the route of a handle."""
        route = self._diverting.get(key)
        return key if route is None else route.number

    def _counts(self, number: int) -> dict[str, Any]:
        """The counts of a route's handles together; messages accepted by a divert target count as diverted."""
        machine = self._handles[number].machine
        counts: dict[str, Any] = machine.counts.as_dict() | {"diverted": 0}
        counts["blocked_by"], counts["last_set_aside"] = machine.blocked_by, machine.last_set_aside
        counts["is_awaited"] = machine.unfinished > 0
        route = self._diverting.get(number)
        for key in () if route is None else route.handles[1:]:
            assert route is not None
            other = self._handles[key].machine
            for name, count in other.counts.as_dict().items():
                counts["diverted" if name == "completed" else name] += count
            counts["blocked_by"] = counts["blocked_by"] or route.named(key, other.blocked_by)
            counts["last_set_aside"] = counts["last_set_aside"] or other.last_set_aside
            counts["is_awaited"] = counts["is_awaited"] or other.unfinished > 0
        return counts
