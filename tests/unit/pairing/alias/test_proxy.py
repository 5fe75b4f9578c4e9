"""The alias: bytes in both directions, a switch that cuts, waiting without an active member, and back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from harness.check.until import passes, until_async
from isthmus.errors import IsthmusError
from isthmus.pairing.alias import proxy as alias_proxy
from isthmus.pairing.alias.proxy import AliasProxy, Lead

_WAIT_SECONDS = 30.0


class Member:
    """Sends its name to each client that connects, then echoes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(self.name.encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await passes(3)


class Stage:
    """Two members behind an alias."""

    def __init__(self) -> None:
        self.members = [Member("ewr"), Member("jfk")]
        self.lead = Lead(1, "ewr", "127.0.0.1", 0)
        self.fault = ""
        self.fault_kind: type[Exception] = IsthmusError
        self.looks = 0

    def look(self) -> Lead:
        self.looks += 1
        if self.fault:
            raise self.fault_kind(self.fault)
        return self.lead

    async def looked(self, times: int) -> None:
        """Waits until the alias has looked so many times more."""
        limit = self.looks + times
        await until_async(lambda: self.looks >= limit)

    def switch(self, number: int, epoch: int = 2) -> None:
        if number < 0:
            self.lead = Lead(epoch, "", "", 0)
        else:
            member = self.members[number]
            self.lead = Lead(epoch, member.name, "127.0.0.1", member.port)


@asynccontextmanager
async def staged() -> AsyncIterator[tuple[Stage, AliasProxy]]:
    stage = Stage()
    for member in stage.members:
        await member.start()
    stage.switch(0, 1)
    proxy = AliasProxy(stage.look)
    await proxy.start("127.0.0.1", 0)
    try:
        yield stage, proxy
    finally:
        await proxy.close()
        for member in stage.members:
            await member.close()


async def dial(proxy: AliasProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def within(awaitable: object) -> object:
    return await asyncio.wait_for(awaitable, _WAIT_SECONDS)  # type: ignore[arg-type]


def run(scenario: Callable[[Stage, AliasProxy], object]) -> None:
    async def all_of_it() -> None:
        async with staged() as (stage, proxy):
            await within(scenario(stage, proxy))

    asyncio.run(all_of_it())


def test_bytes_pass_in_both_directions() -> None:
    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        assert await reader.readline() == b"ewr\n"
        body = bytes(range(256)) * 8192
        writer.write(body)
        assert await reader.readexactly(len(body)) == body
        writer.close()

    run(scenario)


def test_a_switch_closes_connections_and_leads_to_the_other_member() -> None:
    """I1."""

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        await reader.readline()
        stage.switch(1)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert proxy.connections == 0
        reader, writer = await dial(proxy)
        assert await reader.readline() == b"jfk\n"
        writer.close()

    run(scenario)


def test_a_new_epoch_of_the_same_member_closes_no_connection() -> None:
    """I1: receivers keep their locks while they empty a member."""

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        await reader.readline()
        stage.switch(0, 2)
        await stage.looked(3)
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        writer.close()

    run(scenario)


def test_connections_wait_while_no_member_is_active() -> None:
    """I2."""

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        old, old_writer = await dial(proxy)
        await old.readline()
        stage.switch(-1)
        assert await old.read() == b""
        old_writer.close()
        reader, writer = await dial(proxy)
        writer.write(b"early")
        line = asyncio.create_task(reader.readline())
        await stage.looked(3)
        assert not line.done()
        stage.switch(1, 3)
        assert await line == b"jfk\n"
        assert await reader.readexactly(5) == b"early"
        writer.close()

    run(scenario)


def test_connections_that_waited_too_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """I2."""
    monkeypatch.setattr(alias_proxy, "WAIT_SECONDS", 0.05)

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        first, first_writer = await dial(proxy)
        await first.readline()
        stage.switch(-1)
        await first.read()  # it has switched
        first_writer.close()
        reader, writer = await dial(proxy)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    run(scenario)


def test_a_state_that_cannot_be_read_leaves_things_as_they_were() -> None:
    """I4."""

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        await reader.readline()
        stage.fault = "damaged"
        await stage.looked(3)
        writer.write(b"on")
        assert await reader.readexactly(2) == b"on"
        again, again_writer = await dial(proxy)
        assert await again.readline() == b"ewr\n"
        writer.close()
        again_writer.close()

    run(scenario)


def test_a_removed_member_closes_the_connection() -> None:
    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        await stage.members[0].close()
        reader, writer = await dial(proxy)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    run(scenario)


def test_a_reader_that_stops_stops_the_sender() -> None:
    """I3."""

    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        await reader.readline()
        sent, block = 0, bytes(1 << 20)
        try:
            while sent < 200:  # the member echoes, and the echo is not read
                writer.write(block)
                async with asyncio.timeout(0.5):
                    await writer.drain()
                sent += 1
        except TimeoutError:
            pass
        assert sent < 100
        writer.transport.abort()

    run(scenario)


def test_i5_a_look_that_fails_in_whatever_way_does_not_end_the_looking() -> None:
    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        reader, writer = await dial(proxy)
        await reader.readline()
        stage.fault, stage.fault_kind = "unforeseen", RuntimeError
        await stage.looked(3)
        stage.fault = ""
        stage.switch(1)
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_i5_a_connection_to_a_host_name_that_can_be_none_is_closed() -> None:
    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        first, first_writer = await dial(proxy)
        await first.readline()
        stage.lead = Lead(2, "jfk", "a" * 70, 1)
        assert await first.read() == b""  # it has switched
        first_writer.close()
        reader, writer = await dial(proxy)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()

    run(scenario)


def test_connections_that_wait_are_closed_with_the_alias() -> None:
    async def scenario(stage: Stage, proxy: AliasProxy) -> None:
        first, first_writer = await dial(proxy)
        await first.readline()
        stage.switch(-1)
        assert await first.read() == b""
        first_writer.close()
        reader, writer = await dial(proxy)
        line = asyncio.create_task(reader.read())
        await until_async(lambda: len(proxy._tasks) == 1)
        await proxy.close()
        with contextlib.suppress(ConnectionError):
            assert await line == b""
        writer.close()

    run(scenario)
