"""The relay of one namespace: its listeners, and the requesters that wait for one.

What it is: the listeners of each hybrid connection, the choice among them, the rendezvous addresses, and
the counts. What it is not: HTTP (`gate`), nor any socket's contents (`listener`, `exchange`, `tunnel`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol".

Invariants:
    I1. A rendezvous address is valid for one connection, for one purpose, while a requester waits; it cannot be guessed.
    I2. The number of relayed connections is bounded for the namespace, and the number of listeners for each hybrid connection.
    I3. A hybrid connection that is deleted or disabled loses its listeners and connections at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from isthmus.broker.config.limit import ConnectionLimits
from isthmus.broker.relay.exchange import Exchange
from isthmus.broker.relay.listener import Listener
from isthmus.broker.relay.metric import RelayRow
from isthmus.broker.relay.socket import GOING_AWAY, RelaySocket
from isthmus.broker.relay.tunnel import Tunnel
from isthmus.broker.security.grant import Grant
from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.hybrid_connection import HybridConnections
from isthmus.errors import ServerBusyError

__all__ = ["PendingRendezvous", "Rejection", "Relay"]

_log = logging.getLogger(__name__)

# A longer pause between two ticks means that the process was stalled.
_STALL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Rejection:
    """A listener rejects a connection."""

    status: int
    reason: str


@dataclass(slots=True)
class PendingRendezvous:
    """The rendezvous of a listener and one requester.

    Attributes:
        name: of the hybrid connection, canonical.
        action: `accept` or `request`.
        listener: that was sent its address.
        exchange: of a request.
        joined: for a connection: the listener's socket and its subprotocol, or its rejection.
    """

    name: str
    action: str
    listener: Listener
    exchange: Exchange | None = None
    joined: asyncio.Future[tuple[RelaySocket, str] | Rejection] | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a requester still waits for the listener here."""
        if self.exchange is not None:
            return not self.exchange.is_over and not self.exchange.rendezvous.done()
        return self.joined is not None and not self.joined.done()


@dataclass(slots=True)
class _Served:
    """One hybrid connection in use."""

    listeners: list[Listener] = field(default_factory=list)
    tunnels: dict[Tunnel, None] = field(default_factory=dict)
    exchanges: dict[Exchange, None] = field(default_factory=dict)
    connections_total: int = 0
    requests_total: int = 0
    refused_total: int = 0
    unanswered_total: int = 0
    relayed_bytes: int = 0  # by ended tunnels, and by requests


class Relay:
    """The listeners and relayed connections.

    Args:
        hybrids: the hybrid connections.
        limits: of the namespace.
        source: chooses among listeners; a seeded one in tests.
    """

    def __init__(
        self, hybrids: HybridConnections, limits: ConnectionLimits, source: random.Random | None = None
    ) -> None:
        self.limits = limits
        self._hybrids = hybrids
        self._random = source or random.Random()
        self._served: dict[str, _Served] = {}
        self._rendezvous: dict[str, PendingRendezvous] = {}
        self._at_work = 0
        self._checked_at: float | None = None
        hybrids.on_change = self._on_change

    def _of(self, name: str) -> _Served:
        return self._served.setdefault(name.lower(), _Served())

    # ---- listeners

    def listeners(self, name: str) -> int:
        """How many listeners a hybrid connection has."""
        served = self._served.get(name.lower())
        return len(served.listeners) if served is not None else 0

    def has_room(self, name: str) -> bool:
        """Whether one more listener is allowed."""
        return self.listeners(name) < self.limits.max_listeners_per_hybrid_connection

    def enter(self, listener: Listener) -> None:
        """A listener's control channel is open."""
        self._of(listener.name).listeners.append(listener)
        _log.info("listener came: hybrid_connection=%s peer=%s", listener.name, listener.peer)

    def leave(self, listener: Listener) -> None:
        """A listener's control channel is gone; requesters that wait for it are woken."""
        listeners = self._of(listener.name).listeners
        if listener in listeners:
            listeners.remove(listener)
            _log.info("listener went: hybrid_connection=%s peer=%s", listener.name, listener.peer)

    def choose(self, name: str) -> Listener | None:
        """One of the listeners, at random; None where there is none.

        Raises:
            ServerBusyError: there are, and each of them has many unread bytes.
        """
        served = self._served.get(name.lower())
        there = [each for each in served.listeners if each.is_open] if served is not None else []
        if not there:
            return None
        free = [each for each in there if not each.is_busy]
        if not free:
            raise ServerBusyError(f"The listeners of '{name}' do not keep up; try again.")
        return self._random.choice(free)

    # ---- rendezvous

    def open_rendezvous(self, pending: PendingRendezvous) -> str:
        """Opens a rendezvous; returns the secret in its address."""
        secret = secrets.token_urlsafe(24)
        self._rendezvous[secret] = pending
        return secret

    def take_rendezvous(self, secret: str, action: str) -> PendingRendezvous | None:
        """Takes the rendezvous of a secret, once; None where no requester waits there."""
        pending = self._rendezvous.get(secret)
        if pending is None or pending.action != action:
            return None
        del self._rendezvous[secret]
        return pending if pending.is_awaited else None

    def close_rendezvous(self, secret: str) -> None:
        """Closes a rendezvous: the requester no longer waits."""
        self._rendezvous.pop(secret, None)

    # ---- relayed connections

    def begin(self, name: str) -> None:
        """A request or a connection begins.

        Raises:
            ServerBusyError: the limit is reached.
        """
        if self._at_work >= self.limits.max_relayed:
            self._of(name).refused_total += 1
            raise ServerBusyError(
                f"The relay has {self.limits.max_relayed} connections and requests at work; try again."
            )
        self._at_work += 1

    def end(self) -> None:
        """A request or a connection has ended."""
        self._at_work -= 1

    def begin_exchange(self, name: str, exchange: Exchange) -> None:
        """A request is about to be given to a listener."""
        served = self._of(name)
        served.exchanges[exchange] = None
        served.requests_total += 1

    def end_exchange(self, name: str, exchange: Exchange, relayed_bytes: int, *, is_answered: bool) -> None:
        """A request has been answered, or not."""
        served = self._of(name)
        served.exchanges.pop(exchange, None)
        served.relayed_bytes += relayed_bytes
        served.unanswered_total += not is_answered

    def join(self, name: str, requester: RelaySocket, listener: RelaySocket, on_over: Callable[[], None]) -> None:
        """Two sockets become one connection."""
        served = self._of(name)
        served.connections_total += 1

        def over(tunnel: Tunnel) -> None:
            served.tunnels.pop(tunnel, None)
            served.relayed_bytes += tunnel.relayed_bytes
            on_over()

        tunnel = Tunnel(requester, listener, over)
        if not tunnel.is_over:
            served.tunnels[tunnel] = None

    def refuse(self, name: str) -> None:
        """Counts a request or a connection without a listener, or that the listener rejected."""
        self._of(name).refused_total += 1

    # ---- time, and the end

    def tick(self, now: float, now_ms: int, is_current: Callable[[Grant], bool]) -> None:
        """Runs the timers of the control channels and relayed connections; arguments as for `Listener.tick`."""
        stood_still = self._checked_at is not None and now - self._checked_at > _STALL_SECONDS
        self._checked_at = now
        for served in self._served.values():
            for listener in list(served.listeners):
                if stood_still:
                    listener.reset_idle(now)
                listener.tick(now, now_ms, is_current)
            for tunnel in list(served.tunnels):
                tunnel.tick(now)

    def _on_change(self, name: str) -> None:
        for each in [name] if name else list(self._served):
            description = self._hybrids.get(each)
            if description is None or description.status is not EntityStatus.ACTIVE:
                self._close(each, "The hybrid connection was deleted or disabled.")

    def _close(self, name: str, reason: str) -> None:
        served = self._served.get(name)
        if served is None:
            return
        for exchange in list(served.exchanges):
            exchange.fail(reason)
        for listener in list(served.listeners):
            listener.close(GOING_AWAY, reason)
        for tunnel in list(served.tunnels):
            tunnel.close(GOING_AWAY, reason)
        for pending in [each for each in self._rendezvous.values() if each.name == name]:
            if pending.joined is not None and not pending.joined.done():
                pending.joined.set_result(Rejection(503, reason))

    def close(self) -> None:
        """The namespace stops."""
        for name in list(self._served):
            self._close(name, "The namespace is stopping.")

    # ---- counts

    def rows(self) -> list[RelayRow]:
        """A row for each hybrid connection."""
        rows = []
        for name in self._hybrids.names():
            served = self._served.get(name.lower()) or _Served()
            rows.append(
                RelayRow(
                    entity=name,
                    listeners=len(served.listeners),
                    connections=len(served.tunnels),
                    requests=len(served.exchanges),
                    connections_total=served.connections_total,
                    requests_total=served.requests_total,
                    refused_total=served.refused_total,
                    unanswered_total=served.unanswered_total,
                    bytes_total=served.relayed_bytes + sum(tunnel.relayed_bytes for tunnel in served.tunnels),
                )
            )
        return rows

    def without_listener(self) -> int:
        """How many hybrid connections have no listener."""
        return sum(not self.listeners(name) for name in self._hybrids.names())
