"""The alias of a pair: an address that leads to whichever member is active.

What it is: a TCP forwarder that looks at no byte, so that AMQP, TLS, WebSocket and HTTP all pass, and what the state file
says of who is active. What it is not: an authority; tokens and TLS are between the application and the member
(docs/adr/0025-alias-by-forwarding.md).

Invariants:
    I1. No byte reaches a member that the state file does not name: when the alias turns, every connection that was made
        before is cut. While receivers empty a member, it does not turn: they keep their locks.
    I2. While there is no active member, connections wait for one, and get it or are closed.
    I3. A side that does not read keeps the other from sending: no more than a buffer's length is in memory.
    I4. A state file that cannot be read leaves things as they were; it never opens a way.
    I5. No fault of one connection, or of one look, keeps the alias from turning, or from leading others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import NamedTuple

from isthmus.errors import IsthmusError

__all__ = ["AliasProxy", "Lead"]

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
HOLD_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_FLUSH_SECONDS = 10.0
_CONNECTIONS = 10_000
_BUFFER_BYTES = 256 << 10


class Lead(NamedTuple):
    """Where the alias leads, and since which epoch; an empty host for nowhere."""

    epoch: int
    alias: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, str, int]:
        """What decides whether connections stay."""
        return self.alias, self.host, self.port


class AliasProxy:
    """Listens at the alias.

    Args:
        look: where the alias leads now; called often.

    Attributes:
        port: it listens on, once started.
        connections: that are led now.
    """

    def __init__(self, look: Callable[[], Lead]) -> None:
        self._look = look
        self._lead = Lead(0, "", "", 0)
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ways: set[_Way] = set()
        self.port = 0

    @property
    def connections(self) -> int:
        """How many connections are led."""
        return len(self._ways)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be had.
            IsthmusError: where the alias leads cannot be told.
        """
        self._lead = self._look()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Way(self), host, port, backlog=512, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Cut everything and stop listening."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._server is not None:
            self._server.close()
        for way in list(self._ways):
            way.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets of what was cut close in the loop's next turn

    async def _watch(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                lead = self._look()
                told = ""
            except IsthmusError as error:
                if str(error) != told:
                    told = str(error)
                    _log.error("the alias leads on as before: %s", error)
                continue
            except Exception as error:  # noqa: BLE001 - an alias that looks no more would never turn
                if str(error) != told:
                    told = str(error)
                    _log.exception("the alias leads on as before")
                continue
            if lead.address != self._lead.address:
                self._turn(lead)

    def _turn(self, lead: Lead) -> None:
        self._lead = lead
        for way in list(self._ways):
            if way.lead.address != lead.address:
                way.cut()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        _log.info("the alias leads to %s (epoch %d)", lead.alias or "nobody: connections wait", lead.epoch)

    # ---- one connection

    def accept(self, way: _Way) -> None:
        """Lead a new connection."""
        if len(self._ways) + len(self._tasks) >= _CONNECTIONS:
            way.cut()
            return
        task = asyncio.create_task(self._connect(way))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, way: _Way) -> None:
        """A connection has ended."""
        self._ways.discard(way)

    async def _connect(self, way: _Way) -> None:
        try:
            await self._lead_on(way)
        finally:
            if way not in self._ways:
                way.cut()

    async def _lead_on(self, way: _Way) -> None:
        """Connect to the active member, once there is one; the way is among those that are led then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOLD_SECONDS
        while not way.is_closed:
            lead, changed = self._lead, self._changed
            if lead.host:
                way.lead = lead
                try:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await loop.create_connection(lambda: _Far(way), lead.host, lead.port)
                except (OSError, UnicodeError) as error:  # the latter of a host name that can be none
                    _log.debug("%s cannot be reached: %s", lead.alias, error)
                    if lead.address == self._lead.address:
                        break  # the client's own retries are better informed
                    continue
                if lead.address != self._lead.address or way.is_closed:
                    break  # I1: it turned while the connection was made
                self._ways.add(way)
                way.open()
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                break


class _Way(asyncio.Protocol):
    """The client's side of a led connection."""

    def __init__(self, proxy: AliasProxy) -> None:
        self._proxy = proxy
        self.lead = Lead(0, "", "", 0)
        self.near: asyncio.Transport | None = None
        self.far: asyncio.Transport | None = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.near = transport
        transport.pause_reading()  # until there is somebody to send it to
        _prepare(transport)
        self._proxy.accept(self)

    def open(self) -> None:
        """Both sides are there."""
        if self.near is not None and not self.is_closed:
            self.near.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.far is not None:
            self.far.write(data)

    def pause_writing(self) -> None:
        if self.far is not None:
            self.far.pause_reading()

    def resume_writing(self) -> None:
        if self.far is not None:
            self.far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def end(self) -> None:
        """One side has ended: what was read is still sent, then the other ends, too."""
        self.is_closed = True
        self._proxy.forget(self)
        for transport in (self.near, self.far):
            if transport is not None and not transport.is_closing():
                transport.close()
                # A side that reads no more would keep what is left, and the socket, for ever.
                asyncio.get_running_loop().call_later(_FLUSH_SECONDS, transport.abort)

    def cut(self) -> None:
        """End both sides at once; nothing more is sent."""
        self.is_closed = True
        self._proxy.forget(self)
        for transport in (self.near, self.far):
            if transport is not None:
                transport.abort()


class _Far(asyncio.Protocol):
    """The member's side."""

    def __init__(self, way: _Way) -> None:
        self._way = way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        _prepare(transport)
        self._way.far = transport
        if self._way.is_closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._way.near is not None:
            self._way.near.write(data)

    def pause_writing(self) -> None:
        if self._way.near is not None:
            self._way.near.pause_reading()

    def resume_writing(self) -> None:
        if self._way.near is not None:
            self._way.near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._way.end()


def _prepare(transport: asyncio.Transport) -> None:
    transport.set_write_buffer_limits(high=_BUFFER_BYTES)
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
