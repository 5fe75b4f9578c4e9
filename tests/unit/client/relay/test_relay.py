"""Listener and requester over two namespaces, each behind a proxy that can be cut."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.check.until import until_async
from isthmus.broker.server import Options, Server
from isthmus.client import RelayListener as BlockingListener
from isthmus.client import RelayRefusedError, RelayRequest, RelayResponse, RelayUnavailableError
from isthmus.client import RelayRequester as BlockingRequester
from isthmus.client.aio import RelayConnection, RelayListener, RelayRequester
from isthmus.client.endpoint import EndpointError
from isthmus.errors import ConnectionLostError, InvalidArgumentError
from isthmus.testing.proxy import Proxy, Weather

CONFIG = """
limits: {relay_accept_timeout: 2s, relay_response_timeout: 2s}
authorization_rules: {caller: {rights: [Send]}, service: {rights: [Listen]}}
hybrid_connections: {stock: {}, stock-west: {}}
"""
SIDES = ("primary", "secondary")


class Region:
    def __init__(self, server: Server, proxy: Proxy) -> None:
        self.server = server
        self.proxy = proxy
        port = server.ports["amqp"]
        self.text = server.describe()["connection_string"].replace(f":{port}", f":{proxy.port}")
        self.tls = self.text.replace(";UseDevelopmentEmulator=true", "")
        self.ca_file = server.describe()["ca_file"]

    def cut(self) -> None:
        self.proxy.refuse()
        self.proxy.cut()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A connection that was not closed is reported when it is collected: here, and not in another test."""
    yield
    gc.collect()


@pytest.fixture
async def regions(tmp_path: Path) -> AsyncIterator[dict[str, Region]]:
    config = tmp_path / "namespace.yaml"
    config.write_text(CONFIG)
    found = {}
    async with AsyncExitStack() as stack:
        for side in SIDES:
            server = Server(Options(tmp_path / side, config, port=0, tls_port=0, http_port=0))
            await server.start()
            stack.push_async_callback(server.stop)
            proxy = Proxy(server.ports["amqp"])
            stack.callback(proxy.close)
            found[side] = Region(server, proxy)
        yield found


async def echo(request: RelayRequest) -> RelayResponse:
    if request.target.endswith("/fail"):
        raise RuntimeError("no")
    if request.target.endswith("/slow"):
        await asyncio.Event().wait()
    reported = f"{request.method} {request.target} {request.side} {len(request.body)}"
    return RelayResponse(201, request.body or reported.encode(), {"X-Told": reported})


async def talk(connection: RelayConnection) -> None:
    if connection.target.endswith("/none"):
        await connection.reject(418, "no tea")
        return
    await connection.accept(connection.offered[0] if connection.offered else "")
    async for message in connection:
        await connection.send(message)


def both(regions: dict[str, Region]) -> tuple[str, str]:
    return regions["primary"].text, regions["secondary"].text


async def test_requests_and_connections_through_both(regions):
    async with (
        RelayListener(*both(regions), "stock", on_request=echo, on_connect=talk) as listener,
        RelayRequester(*both(regions), "stock", source=random.Random(1)) as requester,
    ):
        await listener.wait_listening(2, timeout=10)
        side = requester.active
        answer = await requester.request("GET", "/level?a=1", headers={"X-Own": "1"})
        assert (answer.status, answer.side) == (201, side)
        assert answer.body.decode() == f"GET /stock/level?a=1 {side} 0"
        for size in (10, 70_000, 3_000_000):  # over the control channel, and over connections of their own
            body = bytes(size)
            answer = await requester.request("POST", "", body=body)
            assert (answer.body == body, answer.headers["X-Told"]) == (True, f"POST /stock {side} {size}")
        assert (await requester.request("GET", "/fail")).status == 500
        connection = await requester.connect("/talk", subprotocols=("own",))
        assert connection.subprotocol == "own"
        for message in ("text", b"bytes" * 100_000):
            await connection.send(message)
            assert await connection.receive() == message
        await connection.close()
        with pytest.raises(RelayRefusedError, match="418"):
            await requester.connect("/none")
        states = listener.statistics()
        assert (states[side].requests, states[side].failed, states[side].is_listening) == (4, 1, True)
        assert requester.statistics().answered[side] == 6


async def test_a_region_that_is_cut_swaps_the_roles_and_comes_back(regions):
    async with (
        RelayListener(*both(regions), "stock", on_request=echo) as listener,
        RelayRequester(*both(regions), "stock", source=random.Random(1)) as requester,
    ):
        await listener.wait_listening(2, timeout=10)
        first = requester.active
        assert (await requester.request("GET")).side == first
        regions[first].cut()
        second = (await requester.request("GET")).side
        assert (second, requester.active, requester.statistics().swaps) == (
            next(side for side in SIDES if side != first), second, 1,
        )  # fmt: skip
        regions[first].proxy.refuse(False)
        await listener.wait_listening(2, timeout=10)
        regions[second].cut()
        assert (await requester.request("GET")).side == first
        assert (listener.statistics()[first].opened, listener.statistics()[first].is_listening) == (2, True)


async def test_when_both_fail_the_roles_stay(regions):
    async with RelayRequester(*both(regions), "stock", source=random.Random(1)) as requester:
        before = requester.active
        with pytest.raises(RelayUnavailableError, match="no listeners") as caught:
            await requester.request("POST", body=b"x")  # no listener has it: the other one is tried
        assert (set(caught.value.failures), caught.value.unknown) == (set(SIDES), False)
        for region in regions.values():
            region.cut()
        with pytest.raises(RelayUnavailableError):
            await requester.request("GET")
        with pytest.raises(RelayUnavailableError):
            await requester.connect()
        assert (requester.active, requester.statistics().swaps) == (before, 0)


async def test_a_request_that_may_have_been_handled_is_not_sent_again(regions):
    async with RelayListener(*both(regions), "stock", on_request=echo) as listener:
        await listener.wait_listening(2, timeout=10)
        async with RelayRequester(*both(regions), "stock", timeout=0.5, source=random.Random(1)) as requester:
            active = requester.active
            with pytest.raises(RelayUnavailableError) as caught:
                await requester.request("POST", "/slow")
            assert (caught.value.unknown, list(caught.value.failures)) == (True, [active])
            # The next one goes elsewhere first.
            assert requester.active != active
            assert (await requester.request("POST", "")).side != active
            with pytest.raises(RelayUnavailableError) as caught:
                await requester.request("GET", "/slow")
            assert (caught.value.unknown, set(caught.value.failures)) == (True, set(SIDES))
        async with RelayRequester(*both(regions), "stock", timeout=0.5, retry_unknown=True) as requester:
            with pytest.raises(RelayUnavailableError) as caught:
                await requester.request("POST", "/slow")
            assert set(caught.value.failures) == set(SIDES)


async def test_a_region_that_hangs_is_noticed(regions):
    async with (
        RelayListener(*both(regions), "stock", on_request=echo, heartbeat=0.6) as listener,
        RelayRequester(*both(regions), "stock", timeout=1.0, source=random.Random(1)) as requester,
    ):
        await listener.wait_listening(2, timeout=10)
        first = requester.active
        regions[first].proxy.set_weather(Weather(is_stalled=True))
        assert (await requester.request("GET")).side != first
        await until_async(lambda: not listener.statistics()[first].is_listening)
        regions[first].proxy.set_weather(Weather())
        await listener.wait_listening(2, timeout=20)


async def test_one_is_stopped_and_started_under_another_name(regions):
    names = {"secondary_entity": "stock-west"}
    async with (
        RelayListener(*both(regions), "stock", on_request=echo, **names) as listener,
        RelayRequester(*both(regions), "stock", source=random.Random(1), **names) as requester,
    ):
        await listener.wait_listening(2, timeout=10)
        await regions["primary"].server.stop()
        answer = await requester.request("GET")
        assert answer.body.decode() == "GET /stock-west secondary 0"


async def test_the_token_is_renewed_before_it_expires(regions):
    async with RelayListener(regions["primary"].text, entity="stock", on_request=echo, token_seconds=3) as listener:
        await listener.wait_listening(timeout=10)
        [channel] = regions["primary"].server.namespace.relay._served["stock"].listeners
        first_ends_at_ms = channel.grant.expires_at_ms
        await until_async(lambda: time.time() * 1000 > first_ends_at_ms)
        assert listener.statistics()["primary"].opened == 1
        async with RelayRequester(regions["primary"].text, entity="stock") as requester:
            assert (await requester.request("GET")).status == 201


async def test_over_tls_with_entity_path(regions):
    region = regions["primary"]
    text = f"{region.tls};EntityPath=stock"
    async with (
        RelayListener(text, on_request=echo, on_connect=talk, connection_verify=region.ca_file) as listener,
        RelayRequester(text, connection_verify=region.ca_file) as requester,
    ):
        await listener.wait_listening(timeout=10)
        assert (await requester.request("PUT", body=bytes(100_000))).body == bytes(100_000)
        connection = await requester.connect()
        await connection.send("a")
        assert await connection.receive() == "a"


async def test_a_wrong_key_is_raised_at_once(regions):
    wrong = [text.replace("SharedAccessKey=", "SharedAccessKey=x") for text in both(regions)]
    async with RelayRequester(*wrong, "stock") as requester:
        with pytest.raises(RelayRefusedError, match="401"):
            await requester.request("GET")
    async with RelayListener(*wrong, "stock", on_request=echo) as listener:
        with pytest.raises(TimeoutError):
            await listener.wait_listening(timeout=0.5)
        assert "401" in listener.statistics()["primary"].error


async def test_a_connection_that_is_lost_says_so(regions):
    async with (
        RelayListener(*both(regions), "stock", on_connect=talk) as listener,
        RelayRequester(*both(regions), "stock") as requester,
    ):
        await listener.wait_listening(2, timeout=10)
        connection = await requester.connect()
        regions[requester.active].cut()
        assert await connection.receive() is None
        with pytest.raises(ConnectionLostError):
            await connection.send("x")
        again = await requester.connect()
        await again.send("x")
        assert await again.receive() == "x"


async def test_an_end_that_is_closed_notifies_the_other(regions):
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def note(connection: RelayConnection) -> None:
        async for message in connection:
            await connection.send(message)
        codes.put_nowait(connection.close_code)

    async with RelayRequester(*both(regions), "stock") as requester:
        async with RelayListener(*both(regions), "stock", on_connect=note) as listener:
            await listener.wait_listening(2, timeout=10)
            connection = await requester.connect()
            await connection.send("x")
            assert await connection.receive() == "x"
        assert await connection.receive() is None
        assert connection.close_code == 1001
        async with RelayListener(*both(regions), "stock", on_connect=note) as listener:
            await listener.wait_listening(2, timeout=10)
            kept = await requester.connect()
            await kept.send("y")
            assert await kept.receive() == "y"
            await requester.close()
            assert await asyncio.wait_for(codes.get(), 10) == 1001


def test_arguments_are_checked() -> None:
    with pytest.raises(EndpointError, match="names no hybrid connection"):
        RelayRequester("Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey=b")
    with pytest.raises(EndpointError, match="has no key"):
        RelayRequester("Endpoint=sb://h/", entity="stock")
    with pytest.raises(EndpointError, match="transport_type"):
        RelayRequester("Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey=b", entity="s", transport_type=1)
    with pytest.raises(InvalidArgumentError, match="on_request"):
        BlockingListener("Endpoint=sb://h/;SharedAccessKeyName=a;SharedAccessKey=b", entity="stock")


async def test_the_classes_for_threads(regions):
    def answer(request: RelayRequest) -> RelayResponse:
        return RelayResponse(200, request.body.upper())

    def converse(connection) -> None:
        for message in connection:
            connection.send(f"{threading.current_thread().name.rpartition('_')[0]}: {message}")

    def play() -> None:
        with (
            BlockingListener(*both(regions), "stock", on_request=answer, on_connect=converse) as listener,
            BlockingRequester(*both(regions), "stock") as requester,
        ):
            listener.wait_listening(2, timeout=10)
            assert requester.request("POST", body=b"abc").body == b"ABC"
            connection = requester.connect("/x")
            connection.send("hello")
            assert connection.receive() == "relay-listener: hello"
            regions[requester.active].cut()
            assert connection.receive() is None
            assert requester.request("GET").status == 200
            assert requester.statistics().swaps == 1
            left_open = requester.connect()
            left_open.send("x")

    before = threading.active_count()
    await asyncio.wait_for(asyncio.to_thread(play), 60)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("relay-")], before


async def test_no_password_of_netrc_goes_to_a_relay_and_none_of_a_proxy_into_an_error(monkeypatch, tmp_path):
    """The relay passes headers on to the listener there."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Not now\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    (tmp_path / "netrc").write_text("default login anonymous password guest\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "")
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        proxy = f"http://user:hunter2@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY"):
            monkeypatch.setenv(name, proxy)
        secure = "Endpoint=sb://relay.test/;SharedAccessKeyName=a;SharedAccessKey=b;EntityPath=stock"
        for text in (f"{secure};UseDevelopmentEmulator=true", secure):
            async with RelayRequester(text) as requester:
                for attempt in (requester.request("GET"), requester.connect()):
                    with pytest.raises(RelayUnavailableError) as raised:
                        await attempt
                    assert "hunter2" not in str(raised.value)
            async with RelayListener(text, on_request=echo) as listener:
                await until_async(lambda: listener.statistics()["primary"].error)
                assert "hunter2" not in listener.statistics()["primary"].error
    assert [each.split(b" ")[0] for each in seen] == [b"GET", b"GET", b"GET", b"CONNECT", b"CONNECT", b"CONNECT"]
    assert all(b"relay.test" in each.partition(b"\r\n")[0] for each in seen)
    assert not any(b"\r\nauthorization:" in each.lower() for each in seen)
