"""The queries of a run, shared by the driver's threads and the thread of the control port.

What it is: the accounts of all queries (`control.account`) behind one lock, the effects that wait for the thread, and `QueryControl`, the
driver's interface to one of them. What it is not: connections (`control.loop`).

Invariants:
    I1. Nothing here blocks: the lock is held for computations, never for a callback or a socket.
    I2. Effects are carried out in the order in which they were decided: they are queued before the lock is released.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.bridge.host.control.account import QueryAccount
from isthmus.bridge.host.control.effect import Effect, Grant
from isthmus.bridge.host.control.message import Message
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["Queries", "QueryControl"]


class Queries:
    """All queries of a run.

    Args:
        wake: wakes the thread that carries out effects.
        clock: monotonic seconds.
    """

    def __init__(self, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._wake = wake
        self._clock = clock
        self._lock = threading.Lock()
        self._accounts: dict[str, QueryAccount] = {}
        self._controls: dict[str, QueryControl] = {}
        self._effects: deque[tuple[str, Effect]] = deque()

    def control(self, name: str) -> QueryControl:
        """The control of a query, always the same object."""
        with self._lock:
            if name not in self._controls:
                self._accounts[name] = account = QueryAccount(name)
                self._controls[name] = QueryControl(account, self._lock, lambda effects: self._queue(name, effects))
            return self._controls[name]

    def is_known(self, name: str) -> bool:
        """Whether there is such a query."""
        with self._lock:
            return name in self._accounts

    # ---- the thread

    def on_message(self, name: str, number: int, message: Message, *, is_local: bool) -> list[Grant]:
        """A message of a connection; returns the answers to send at once. All other effects are left to `take`.

        Raises:
            ChannelError: it is not valid at this point.
        """
        with self._lock:
            effects = self._accounts[name].on_message(number, message, is_local=is_local, now=self._clock())
            self._effects.extend((name, effect) for effect in effects if not isinstance(effect, Grant))
        return [effect for effect in effects if isinstance(effect, Grant)]

    def on_stop_sent(self, name: str, number: int) -> None:
        """STOP was sent."""
        with self._lock:
            self._accounts[name].on_stop_sent(number)

    def on_closed(self, name: str, number: int, *, is_cut_off: bool) -> None:
        """A connection is gone; the effects are left to `take`."""
        with self._lock:
            effects = self._accounts[name].on_closed(number, is_cut_off=is_cut_off, now=self._clock())
            self._effects.extend((name, effect) for effect in effects)

    def take(self) -> tuple[str, Effect] | None:
        """The next effect to carry out."""
        with self._lock:
            return self._effects.popleft() if self._effects else None

    def _queue(self, name: str, effects: list[Effect]) -> None:
        self._effects.extend((name, effect) for effect in effects)
        if effects:
            self._wake()


class QueryControl:
    """One shared query, for the driver's threads. Made by `ControlServer.query`.

    Args:
        account: its state.
        lock: guards the account.
        carry_out: queues effects for the thread.
    """

    def __init__(self, account: QueryAccount, lock: threading.Lock, carry_out: Callable[[list[Effect]], None]) -> None:
        self._account = account
        self._lock = lock
        self._carry_out = carry_out

    @property
    def name(self) -> str:
        """Of the query."""
        return self._account.name

    @property
    def stopping(self) -> bool:
        """Whether its leases have to end."""
        with self._lock:
            return bool(self._account.stopping)

    @property
    def has_been_met(self) -> bool:
        """Whether its data source ever sent LOOK, or a lease began."""
        with self._lock:
            return self._account.has_been_met

    def assign(self, routes: Sequence[RouteSpec], *, lease_seconds: float = 0.0) -> None:
        """Assigns exactly these routes; a query that was stopped begins again.

        Args:
            routes: to carry.
            lease_seconds: how long a lease is; 0: the option of its data source.

        Raises:
            InvalidArgumentError: two routes have one name, or a route is carried already, with other settings than those given now.
        """
        with self._lock:
            self._carry_out(self._account.assign(routes, lease_seconds))

    def add(self, route: RouteSpec) -> None:
        """Assigns this route too, at once.

        Raises:
            InvalidArgumentError: it is carried already, with other settings than those given now.
        """
        with self._lock:
            self._carry_out(self._account.add(route))

    def remove(self, name: str, why: str) -> None:
        """Ends a route in order."""
        with self._lock:
            self._carry_out(self._account.remove(name, why))

    def move(self, name: str, slot: int) -> None:
        """Moves a route to another slot, where it begins once the previous reader has ended it."""
        with self._lock:
            self._carry_out(self._account.move(name, slot))

    def plan(self, name: str) -> None:
        """Sends the result of `plan_of` for a route to its readers."""
        with self._lock:
            self._carry_out(self._account.plan(name))

    def stop(self, why: str) -> None:
        """Ends every lease in order, those that begin later too, until `assign`."""
        with self._lock:
            self._carry_out(self._account.stop(why))

    def reports(self) -> dict[str, RouteReport]:
        """The state of each route: counts over everything ever reported, the rest as reported last."""
        with self._lock:
            return self._account.reports()

    def busy(self) -> bool:
        """Whether a lease is running."""
        with self._lock:
            return self._account.is_busy()

    def processes(self) -> set[int]:
        """Processes of running leases on this machine."""
        with self._lock:
            return self._account.processes()

    def ended_errors(self) -> tuple[str, ...]:
        """The errors that its last leases ended with, oldest first."""
        with self._lock:
            return tuple(self._account.errors)
