"""One running namespace, without its sockets.

What it is: the shared part of its connections: the engine, the commit loop, the keys, the rounds of queues, and the timers. What it
is not: listening (`isthmus.broker.server`), a connection (`isthmus.broker.peer`).

Invariants:
    I1. A connection's frames are sent at the end of the loop's iteration in which they were queued.
    I2. A queue without receivers has no round; an idle namespace wakes a few times a second at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from isthmus.amqp import Error
from isthmus.amqp.types import Symbol
from isthmus.broker.commit import CommitLoop
from isthmus.broker.config.limit import ConnectionLimits
from isthmus.broker.health import HEALTHY, Health, without_paths
from isthmus.broker.hub import HubGate
from isthmus.broker.large import LargeDesk
from isthmus.broker.link.dispatch import Dispatch
from isthmus.broker.link.sender_link import SenderLink
from isthmus.broker.net.admission import Admission
from isthmus.broker.peer import Peer
from isthmus.broker.relay.relay import Relay
from isthmus.broker.security.authority import Authority
from isthmus.broker.zone import ZoneRow, zone_rows
from isthmus.clock import Clock, SystemClock
from isthmus.entities import Engine, FragmentStore, FragmentStores, Journal
from isthmus.entities.port import MessageSource
from isthmus.errors import EntityNotFoundError, StoreError

__all__ = ["Namespace"]

_log = logging.getLogger(__name__)

# Heartbeats, token deadlines and expiry have a resolution of seconds.
_PEER_TICK_SECONDS = 0.5
# A longer pause between two ticks means that the process, or the loop, was stalled.
_STALL_SECONDS = 4 * _PEER_TICK_SECONDS
# Locks, TTL and schedules are kept in milliseconds; a finer check than this would not be noticed.
_ENGINE_TICK_SECONDS = 0.05
# Longest time without a check of the engine's timers: the wall clock may be set.
_ENGINE_REST_SECONDS = 0.5
# After a failure of the disk: how often to try it when no client does.
_PROBE_SECONDS = 10.0
# How often a store of fragments that is down is tried: its messages wait for it.
_STORE_RETRY_SECONDS = 2.0
# How long a client that sends while the namespace stops has to answer the close of its connection.
_FAREWELL_SECONDS = 1.0
# How long to wait until the bodies of complete large messages are written, and how often to check.
_BODY_SECONDS = 10.0
_TURN_SECONDS = 0.01
# A $management request may contain one message of the largest size and its properties.
_REQUEST_ROOM_BYTES = 64 * 1024


class Namespace:
    """The shared part of one served namespace; created on the loop that runs it.

    Args:
        engine: the entities.
        store: the engine's store.
        authority: checks tokens and keys.
        clock: wall time of messages.
        name: container id that clients see.
        max_message_size_bytes: the namespace's limit.
        limits: of connections and links.
        admission: the account of the sockets.
        uploads_limit: how many large messages may arrive at once.
        quick_sync_bytes: as `quick_bytes` of `CommitLoop`.

    Attributes:
        token_clock: wall time for the expiry of tokens: the machine's own, without the namespace's clock offset.
        peers: open connections.
        known_peers: those of them whose client has shown a token or a key.
        identity: identifies this namespace.
        started_at: monotonic seconds.
        is_stopping: whether connections are about to be closed.
        partial_bytes: of messages whose last frame has not come, all connections together.
        hub_gate: the interface of connections to event hubs.
        large: handles large messages.
        relay: the listeners and connections of hybrid connections.
    """

    def __init__(
        self,
        engine: Engine,
        store: Journal,
        authority: Authority,
        clock: Clock,
        *,
        token_clock: Clock | None = None,
        name: str = "isthmus",
        max_message_size_bytes: int = 1 << 20,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
        admission: Admission | None = None,
        uploads_limit: int = 256,
        quick_sync_bytes: int = 0,
    ) -> None:
        self.engine = engine
        self._stores = cast("FragmentStores | None", engine.stores)  # as they were given to it
        self.store = store
        self.started_at = time.monotonic()
        self.authority = authority
        self.clock = clock
        self.token_clock = token_clock or SystemClock()
        self.name = name
        self.identity = engine.identity
        self.max_request_bytes = max_message_size_bytes + _REQUEST_ROOM_BYTES
        self.limits = limits
        self.is_stopping = False
        self.partial_bytes = 0
        self.admission = admission or Admission()
        self.peers: set[Peer] = set()
        self.known_peers: set[Peer] = set()
        self._are_gone = asyncio.Event()
        self.hub_gate = HubGate(engine.hubs, clock)
        self.relay = Relay(engine.hybrid_connections, limits)
        self._quick_sync_bytes = quick_sync_bytes
        self.commits = self._commit_loop(engine, store)
        self.large = LargeDesk(engine.blobs, uploads_limit)
        self._store_commits: list[CommitLoop] = []
        self._loop = asyncio.get_running_loop()
        self._dispatches: dict[MessageSource, Dispatch] = {}
        self._touched: set[Peer] = set()
        self._is_fanning_out = False
        self._flushing = False
        self._timers: list[asyncio.TimerHandle] = []
        self._peers_ticked_at = clock.monotonic()
        self._has_waited = False
        self.every(_PEER_TICK_SECONDS, self._tick_peers)
        self._engine_due_at = 0.0  # monotonic seconds
        self._engine_looked_at = clock.monotonic()
        self.every(_ENGINE_TICK_SECONDS, self.tick_engine)
        self.every(_PROBE_SECONDS, self._probe)
        if self._stores is not None:
            self._take_over(self._stores)

    def health(self) -> Health:
        """Whether clients are served in full, and the reason if not."""
        if self.is_stopping:
            return Health("stopping", "The namespace is stopping.")
        if not self.commits.is_healthy:
            return Health("unhealthy", f"The store refuses changes: {without_paths(self.commits.failure)}")
        down = tuple(store.index for store in self._stores or () if not store.is_up)
        zones_down = tuple(row.zone for row in self.zones() if row.state != "serving")
        return HEALTHY._replace(
            partition_stores_down=down, zones_down=zones_down, without_listener=self.relay.without_listener()
        )

    def zones(self) -> list[ZoneRow]:
        """The state of the copies of the store; empty where there is only one."""
        return zone_rows(self.store, self._stores, self.engine.blobs.files)

    def has_entity(self, path: str) -> bool:
        """Whether an entity has this path."""
        if self.hub_gate.claims(path):
            return True
        try:
            self.engine.canonical_name(path)
        except EntityNotFoundError:
            return False
        return True

    def add_sender_link(self, sender_link: SenderLink) -> None:
        """Adds a receiving link to its queue's rounds."""
        dispatch = self._dispatches.get(sender_link.queue)
        if dispatch is None:
            dispatch = self._dispatches[sender_link.queue] = Dispatch(sender_link.queue)
        dispatch.add(sender_link)

    def receivers(self, queue: MessageSource) -> int:
        """How many links receive from a queue."""
        dispatch = self._dispatches.get(queue)
        return 0 if dispatch is None else dispatch.statistics()["links"]

    def remove_sender_link(self, sender_link: SenderLink) -> None:
        """Removes a receiving link."""
        dispatch = self._dispatches.get(sender_link.queue)
        if dispatch is None:
            return
        dispatch.remove(sender_link)
        if dispatch.is_empty:
            dispatch.close()
            del self._dispatches[sender_link.queue]

    def offer(self, sender_link: SenderLink) -> None:
        """A receiving link got credit, a drain or room to write."""
        dispatch = self._dispatches.get(sender_link.queue)
        if dispatch is not None:
            dispatch.offer(sender_link)

    def call_later(self, seconds: float, run: Callable[[], None]) -> asyncio.TimerHandle:
        """Call once, after so many seconds, unless the namespace has stopped or the timer was cancelled."""
        return self._loop.call_later(seconds, run)

    def touch(self, peer: Peer) -> None:
        """Flushes a connection at the end of this iteration of the loop."""
        self._touched.add(peer)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_touched)

    def _take_over(self, stores: FragmentStores) -> None:
        """Commits the staged operations of partitioned entities, for each store separately."""
        stores.on_opened = self._commit_store
        stores.on_change = _log_store
        for store in stores:
            if store.engine is not None:
                self._commit_store(store)
            else:
                _log_store(store)
        self.every(_STORE_RETRY_SECONDS, stores.retry)

    def _commit_store(self, store: FragmentStore) -> None:
        assert store.engine is not None
        assert store.journal is not None
        self._store_commits.append(self._commit_loop(store.engine, store.journal))

    def _commit_loop(self, engine: Engine, store: Journal) -> CommitLoop:
        return CommitLoop(engine, store, self._on_committed, quick_bytes=self._quick_sync_bytes)

    async def disconnect(self) -> None:
        """Acknowledges accepted messages, and closes the connections, which may continue to send meanwhile."""
        for peer in self.peers:
            peer.take_no_more()
        # What a failure has left in a store goes to whom it belongs with its next commit.
        self._probe()
        for store in self._stores or ():
            if store.engine is not None:
                _try_disk(store.engine.retry)
        for commits in (self.commits, *self._store_commits):
            with suppress(StoreError):  # logged, and sent to the clients concerned
                await commits.wait_durable()
        await self._wait_sent()
        self.engine.stop_fan_out()
        # The condition on which clients of the service reconnect.
        error = Error(Symbol("amqp:connection:forced"), "The namespace is stopping.")
        for peer in list(self.peers):
            peer.begin_close(error)
        if self.peers:
            self._are_gone.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._are_gone.wait(), _FAREWELL_SECONDS)
        for peer in list(self.peers):
            peer.close(error)

    async def _wait_sent(self) -> None:
        """Waits, for a limited time, until the outcomes of large messages whose bodies are still being written, and the messages that were
        deleted for clients, are sent.
        """
        limit = self._loop.time() + _BODY_SECONDS
        while any(peer.owes for peer in self.peers) and self._loop.time() < limit:  # noqa: ASYNC110 - bodies end in any order
            await asyncio.sleep(_TURN_SECONDS)

    def forget(self, peer: Peer) -> None:
        """A connection has ended."""
        self.peers.discard(peer)
        self.known_peers.discard(peer)
        if not self.peers:
            self._are_gone.set()

    async def close(self) -> None:
        """Acknowledges staged operations, closes the connections, stops the timers."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self.disconnect()
        for commits in (self.commits, *self._store_commits):
            await commits.close()
        self.large.close()
        for dispatch in self._dispatches.values():
            dispatch.close()
        self._dispatches.clear()

    def statistics(self) -> dict[str, int]:
        """Connections, links, rounds and commits."""
        return {
            "connections": len(self.peers),
            "links": sum(peer.statistics()["links"] for peer in self.peers),
            "receiving_queues": len(self._dispatches),
            **self.hub_gate.statistics(),
            **self.commits.statistics(),
        }

    def _flush_touched(self) -> None:
        self._flushing = False
        touched, self._touched = self._touched, set()
        for peer in touched:
            peer.flush()

    def _tick_peers(self) -> None:
        now = self.clock.monotonic()
        was_stopped, self._peers_ticked_at = now - self._peers_ticked_at > _STALL_SECONDS, now
        self._has_waited = was_stopped and not self._has_waited
        if self._has_waited:
            return  # bytes that clients sent meanwhile are read first; this process was stalled, the clients were not idle
        for peer in list(self.peers):
            peer.tick()

    def _on_committed(self) -> None:
        # Staged operations may be due before everything that the engine reported at the last check.
        self._engine_due_at = 0.0
        self._flush_touched()
        self._fan_out_soon()

    def _fan_out_soon(self) -> None:
        """Lets topics continue copying while a disk is slow: in the next iteration of the loop, after others were served."""
        if not self._is_fanning_out and any(engine.is_fanning_out for engine in self._engines()):
            self._is_fanning_out = True
            self._loop.call_soon(self._fan_out)

    def _fan_out(self) -> None:
        self._is_fanning_out = False
        again = False
        for engine in self._engines():
            try:
                again = engine.fan_out() or again
            except StoreError as error:
                _log.warning("copies of a topic not made: reason=%s", error)
        if again:
            self._fan_out_soon()

    def _engines(self) -> list[Engine]:
        return [self.engine, *(store.engine for store in self._stores or () if store.engine is not None)]

    def tick_engine(self) -> None:
        """Runs the engine's timers, if any is due."""
        now = self.clock.monotonic()
        was_stopped, self._engine_looked_at = now - self._engine_looked_at > _STALL_SECONDS, now
        if was_stopped:
            self.engine.restart_idle_counts()
        if now < self._engine_due_at:
            return
        now_ms = self.clock.wall_ms()
        try:
            due_ms = self.engine.tick(now_ms)
        except StoreError as error:
            _log.warning("what time asks for waits for the store: reason=%s", error)
            due_ms = None
        except Exception:  # noqa: BLE001 - whatever it is, the next look comes
            _log.exception("what time asks for waits for the next look: a fault")
            due_ms = None
        rest_seconds = _ENGINE_REST_SECONDS if due_ms is None else min((due_ms - now_ms) / 1000, _ENGINE_REST_SECONDS)
        self._engine_due_at = now + rest_seconds

    def _probe(self) -> None:
        """Tries the disk for a health check: a load balancer may send no clients until it succeeds, and without them no one else tries."""
        if self.engine.needs_probe or not self.commits.is_healthy:
            _try_disk(self.engine.probe)

    def every(self, seconds: float, run: Callable[[], None]) -> None:
        """Calls a function at an interval of so many seconds until the namespace closes."""
        slot = len(self._timers)

        def again() -> None:
            self._timers[slot] = self._loop.call_later(seconds, again)
            run()

        self._timers.append(self._loop.call_later(seconds, again))


def _try_disk(probe: Callable[[], None]) -> None:
    try:
        probe()
    except StoreError as error:
        _log.warning("the store does not come back: reason=%s", error)
    except Exception:  # noqa: BLE001 - a fault of one callback ends no timer
        _log.exception("a fault when the store came back")


def _log_store(store: FragmentStore) -> None:
    if store.is_up:
        _log.warning("partition store %d is up again", store.index)
    else:
        _log.error(
            "partition store %d is down: its partitions are out of service: reason=%s", store.index, store.reason
        )
