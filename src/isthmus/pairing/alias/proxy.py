"""The alias of a pair: an address that forwards to the active member.

What it is: a TCP forwarder that reads no contents, so that AMQP, TLS, WebSocket and HTTP all pass, and that follows the active member in
the state file. What it is not: an authority; tokens and TLS are between the application and the member
(docs/adr/0025-alias-by-forwarding.md).

Invariants:
    I1. No byte reaches a member that the state file does not name: when the alias switches, every earlier connection
        is cut. While receivers empty a member, it does not switch: they keep their locks.
    I2. While there is no active member, connections wait for one, and are connected or closed.
    I3. A side that does not read stops the other's sending: at most one buffer is in memory.
    I4. A state file that cannot be read changes nothing; it never permits a connection.
    I5. No fault of one connection, or of one read of the state, keeps the alias from switching, or from forwarding others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import NamedTuple

from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["AliasAddressError", "AliasProxy", "Lead"]

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
WAIT_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_FLUSH_SECONDS = 10.0
_CONNECTIONS = 10_000
_BUFFER_BYTES = 256 << 10


class AliasAddressError(InvalidArgumentError):
    """The alias cannot listen on its address."""

    code = "alias-address"


class Lead(NamedTuple):
    """The member that the alias forwards to, and since which epoch; an empty host for none."""

    epoch: int
    alias: str
    host: str
    port: int

    @property
    def address(self) -> tuple[str, str, int]:
        """The values by which connections are kept or cut."""
        return self.alias, self.host, self.port


class AliasProxy:
    """Listens at the alias.

    Args:
        read_lead: returns the present lead; called often.

    Attributes:
        port: of the listening socket, once started.
        connections: that are forwarded now.
    """

    def __init__(self, read_lead: Callable[[], Lead]) -> None:
        self._read_lead = read_lead
        self._lead = Lead(0, "", "", 0)
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[_ClientSide] = set()
        self.port = 0

    @property
    def connections(self) -> int:
        """How many connections are forwarded."""
        return len(self._clients)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            AliasAddressError: the address cannot be bound.
            IsthmusError: the lead cannot be read.
        """
        self._lead = self._read_lead()
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _ClientSide(self), host, port, backlog=512, reuse_address=True
            )
        except OSError as error:
            raise AliasAddressError(
                f"the alias cannot listen on {host}:{port}: {error.strerror or error}; write another listen:"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Cut all connections and stop listening."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets of cut connections close in the loop's next iteration

    async def _watch(self) -> None:
        reported = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                lead = self._read_lead()
                reported = ""
            except IsthmusError as error:
                if str(error) != reported:
                    reported = str(error)
                    _log.error("the alias is unchanged: %s", error)
                continue
            except Exception as error:  # noqa: BLE001 - an alias without this loop would never switch
                if str(error) != reported:
                    reported = str(error)
                    _log.exception("the alias is unchanged")
                continue
            if lead.address != self._lead.address:
                self._switch(lead)

    def _switch(self, lead: Lead) -> None:
        self._lead = lead
        for client in list(self._clients):
            if client.lead.address != lead.address:
                client.cut()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        _log.info("the alias forwards to %s (epoch %d)", lead.alias or "no member: connections wait", lead.epoch)

    # ---- one connection

    def accept(self, client: _ClientSide) -> None:
        """Forward a new connection."""
        if len(self._clients) + len(self._tasks) >= _CONNECTIONS:
            client.cut()
            return
        task = asyncio.create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def discard(self, client: _ClientSide) -> None:
        """A connection has ended."""
        self._clients.discard(client)

    async def _connect(self, client: _ClientSide) -> None:
        try:
            await self._forward(client)
        finally:
            if client not in self._clients:
                client.cut()

    async def _forward(self, client: _ClientSide) -> None:
        """Connect to the active member, once there is one; the connection is among the forwarded ones then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_SECONDS
        while not client.is_closed:
            lead, changed = self._lead, self._changed
            if lead.host:
                client.lead = lead
                try:
                    async with asyncio.timeout(_CONNECT_SECONDS):
                        await loop.create_connection(lambda: _MemberSide(client), lead.host, lead.port)
                except (OSError, UnicodeError) as error:  # the latter for an impossible host name
                    _log.debug("%s cannot be reached: %s", lead.alias, error)
                    if lead.address == self._lead.address:
                        break  # the client retries itself
                    continue
                if lead.address != self._lead.address or client.is_closed:
                    break  # I1: it switched while the connection was opened
                self._clients.add(client)
                client.open()
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                break


class _ClientSide(asyncio.Protocol):
    """The client's side of a forwarded connection."""

    def __init__(self, proxy: AliasProxy) -> None:
        self._proxy = proxy
        self.lead = Lead(0, "", "", 0)
        self.near: asyncio.Transport | None = None
        self.far: asyncio.Transport | None = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.near = transport
        transport.pause_reading()  # until the member's side is connected
        _prepare(transport)
        self._proxy.accept(self)

    def open(self) -> None:
        """Both sides are connected."""
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
        """One side has ended: its data is still sent, then the other ends, too."""
        self.is_closed = True
        self._proxy.discard(self)
        for transport in (self.near, self.far):
            if transport is not None and not transport.is_closing():
                transport.close()
                # A side that does not read any more would keep the rest of the data, and the socket, without limit.
                asyncio.get_running_loop().call_later(_FLUSH_SECONDS, transport.abort)

    def cut(self) -> None:
        """End both sides immediately; nothing more is sent."""
        self.is_closed = True
        self._proxy.discard(self)
        for transport in (self.near, self.far):
            if transport is not None:
                transport.abort()


class _MemberSide(asyncio.Protocol):
    """The member's side."""

    def __init__(self, client: _ClientSide) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        _prepare(transport)
        self._client.far = transport
        if self._client.is_closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._client.near is not None:
            self._client.near.write(data)

    def pause_writing(self) -> None:
        if self._client.near is not None:
            self._client.near.pause_reading()

    def resume_writing(self) -> None:
        if self._client.near is not None:
            self._client.near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.end()


def _prepare(transport: asyncio.Transport) -> None:
    transport.set_write_buffer_limits(high=_BUFFER_BYTES)
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
