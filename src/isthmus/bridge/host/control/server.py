"""The driver's end of the control connections: readers get their routes, and report.

What it is: the control port of a run, served by a thread of its own (`control.loop`), and the access to its queries (`control.query`). What
it is not: the frames (`isthmus.bridge.frame`; docs/explanation/architecture.md, "Control connection").

    driver's threads --QueryControl--> account --effects--> queue --> thread --> sockets
    sockets --> thread --> account --effects--> queue

The address. Readers run wherever Spark runs its tasks. With `local[*]` that is this machine, and the default, 127.0.0.1, is right. On a
cluster executors have to reach the driver: bind an address of the driver's network, or `0.0.0.0` and set `advertised` to the
address that executors reach (`spark.driver.host`). The port is then open to that network; without the key of the run a client
gets no further than the handshake.

Invariants:
    I1. Nothing here waits for the thread, except `close`.
    I2. After `close` reports can still be read, and no lease is running.
    I3. No log line and no error contains the key.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping

from isthmus.bridge.host.control.door import Door
from isthmus.bridge.host.control.loop import Callbacks, ControlLoop
from isthmus.bridge.host.control.query import Queries, QueryControl
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport
from isthmus.errors import InvalidArgumentError

__all__ = ["ControlServer", "QueryControl"]

log = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0
_WILDCARDS = ("", "0.0.0.0", "::")


class ControlServer:
    """The control port of a run.

    The callbacks are called by the port's thread, outside locks. They may use `QueryControl`, and must not block: while they
    block, no question for how long a claim is held is answered, and leases stop sending.

    Args:
        token: the key of the run, e.g. `secrets.token_urlsafe(32)`; readers get it with the address.
        host: the address to listen on.
        port: 0: any that is free.
        advertised: the host that readers connect to; empty: `host`.
        claim_seconds: for how long a claim is still held.
        plan_of: which messages of a route may be in flight after deaths.
        on_death: called when a process of a query died: with the query, and the last reports of its routes, with counts over
            everything ever reported as in `QueryControl.reports`; an empty report for routes that had nothing in flight. A lease that
            begins after the call gets the new plan.

    Raises:
        InvalidArgumentError: no reader can connect to `host`, and `advertised` is empty; or the token is empty.
        ControlError: the address cannot be listened on.
    """

    def __init__(
        self,
        token: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised: str = "",
        claim_seconds: Callable[[str], float],
        plan_of: Callable[[str], Plan],
        on_death: Callable[[str, Mapping[str, RouteReport]], None],
    ) -> None:
        if not token:
            raise InvalidArgumentError(
                "the control port needs a key; give it a random one, e.g. secrets.token_urlsafe(32)"
            )
        if host in _WILDCARDS and not advertised:
            raise InvalidArgumentError(
                f"the control port listens on '{host}', to which no reader can connect; tell which host executors reach, e.g. "
                "that of spark.driver.host"
            )
        self._advertised = advertised or host
        self._door = Door(host, port, token)
        self._port = self._door.port
        wake_read, self._wake_write = socket.socketpair()
        for each in (wake_read, self._wake_write):
            each.setblocking(False)
        self._queries = Queries(self._wake)
        self._loop = ControlLoop(self._door, self._queries, wake_read, Callbacks(claim_seconds, plan_of, on_death))
        self._thread = threading.Thread(target=self._loop.run, name="control", daemon=True)

    @property
    def address(self) -> str:
        """The address for readers: `host:port`."""
        host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
        return f"{host}:{self._port}"

    def start(self) -> ControlServer:
        """Begins to serve."""
        self._thread.start()
        return self

    def query(self, name: str) -> QueryControl:
        """The control of a query, always the same object; leases of queries that were never created here are refused."""
        return self._queries.control(name)

    def close(self) -> None:
        """Closes every connection and the port."""
        self._loop.end()
        self._wake()
        if self._thread.ident is None:
            self._loop.run()
        else:
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                log.warning("control port: it is still waiting for the driver after %.0f s; left behind", _JOIN_SECONDS)
        self._wake_write.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the loop wakes anyway; closed: there is no loop to wake
            self._wake_write.send(b"x")
