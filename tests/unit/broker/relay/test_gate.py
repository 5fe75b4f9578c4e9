"""The relay over real sockets: listeners, requests, connections, refusals, limits."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import WSMsgType
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from harness.check.until import passes, until_async
from isthmus.broker.relay import gate as gate_module
from isthmus.broker.relay import listener as listener_module
from isthmus.broker.relay import request as request_module
from isthmus.broker.relay.tunnel import STALL_SECONDS
from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.hybrid_connection import HybridConnectionDescription

# Connections that a test cut off.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")


async def refusal(awaitable):
    """Status with which a handshake is refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await awaitable
    return caught.value.status


async def phrase(served, path, action, rule):
    """What a handshake is refused with."""
    headers = {
        "ServiceBusAuthorization": served.token(rule), "Upgrade": "websocket", "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13",
    }  # fmt: skip
    async with served.http.get(served.address(path, action, "http"), headers=headers) as answer:
        return answer.reason


# ---- requests


async def test_a_small_request_goes_over_the_control_channel(served):
    listener = await served.listen()
    asked = served.begin("stock/level?a=1&sb-hc-id=7&b=%20x", "POST", data=b"body", headers={"X-Own": "1"})
    request = (await listener.reported())["request"]
    assert (request["requestTarget"], request["method"], request["body"]) == ("/stock/level?a=1&b=%20x", "POST", True)
    assert request["requestHeaders"]["X-Own"] == "1"
    assert request["requestHeaders"]["Via"] == f"1.1 {served.host}"
    assert not {"ServiceBusAuthorization", "Host", "Content-Length"} & set(request["requestHeaders"])
    assert request["remoteEndpoint"]["address"] == "127.0.0.1"
    assert await listener.body() == b"body"
    headers = {"X-Answer": "yes", "Set-Cookie": ["a=1", "b=2"]}
    await listener.answer(request, b"done", statusCode=201, statusDescription="Made", responseHeaders=headers)
    status, body, answer = await asked
    assert (status, body, answer.reason) == (201, b"done", "Made")
    assert answer.headers["X-Answer"] == "yes"
    assert answer.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert answer.headers["Via"] == f"1.1 {served.host}"


async def test_answers_in_any_order_and_bodies_in_fragments(served):
    listener = await served.listen()
    asked = [served.begin(f"stock/{number}") for number in range(2)]
    requests = {
        request["requestTarget"]: request for request in [(await listener.reported())["request"] for _ in asked]
    }
    # As hyco-https sends it: a binary message in fragments, the last one empty; and an empty one where there is no body.
    await listener.socket.send_json(
        {"response": {"requestId": requests["/stock/1"]["id"], "statusCode": 200, "body": True}}
    )
    listener.socket._writer.transport.write(b"\x02\x83\0\0\0\0fir" + b"\x00\x82\0\0\0\0st" + b"\x80\x80\0\0\0\0")
    await listener.answer(requests["/stock/0"], statusCode=204)
    await listener.socket.send_bytes(b"")
    assert (await asked[1])[:2] == (200, b"first")
    assert (await asked[0])[:2] == (204, b"")


async def test_a_large_request_is_fetched_and_answered_over_a_rendezvous(served):
    listener = await served.listen()
    large = bytes(range(256)) * 4000
    asked = served.begin("stock", "PUT", data=large)
    reported = (await listener.reported())["request"]
    assert set(reported) == {"address", "id"}
    meeting = await listener.meet(reported["address"])
    request = (await meeting.receive_json())["request"]
    assert (request["id"], request["method"], request["body"]) == (reported["id"], "PUT", True)
    assert (await meeting.receive(timeout=10)).data == large
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    await meeting.send_bytes(large[::-1])
    status, body, _ = await asked
    assert (status, body) == (200, large[::-1])
    assert (await meeting.receive(timeout=10)).data == 1000
    # An address is good for one connection.
    assert await refusal(listener.meet(reported["address"])) == 403


async def test_a_chunked_request_is_fetched_and_a_large_answer_upgrades(served):
    listener = await served.listen()

    async def chunks():
        yield b"a" * 10
        yield b"b" * 10

    asked = served.begin("stock", "POST", data=chunks())
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.receive_json()
    assert (await meeting.receive(timeout=10)).data == b"a" * 10 + b"b" * 10
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200}})
    assert (await asked)[:2] == (200, b"")
    asked = served.begin("stock")
    reported = (await listener.reported())["request"]
    assert reported["method"] == "GET"
    meeting = await listener.meet(reported["address"])
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    await meeting.send_bytes(b"x" * 300_000)
    assert (await asked)[1] == b"x" * 300_000


async def test_a_body_with_an_encoding_passes_as_it_is(served):
    listener = await served.listen()
    small, large = gzip.compress(b"x" * 200_000), gzip.compress(random.Random(1).randbytes(200_000))
    for body in (small, b"not what the header says", large):
        asked = served.begin("stock", "POST", data=body, headers={"Content-Encoding": "gzip"})
        request = (await listener.reported())["request"]
        if body is large:
            meeting = await listener.meet(request["address"])
            request = (await meeting.receive_json())["request"]
            came = (await meeting.receive(timeout=10)).data
        else:
            came = await listener.body()
        assert (request["requestHeaders"]["Content-Encoding"], came) == ("gzip", body)
        if body is large:
            await meeting.send_json({"response": {"requestId": request["id"], "statusCode": 200}})
        else:
            await listener.answer(request)
        assert (await asked)[0] == 200


async def test_an_answer_comes_as_it_is_made(served):
    listener = await served.listen()
    headers = {"ServiceBusAuthorization": served.token("sender")}
    asked = asyncio.create_task(served.http.get(f"http://{served.host}/stock", headers=headers))
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    answer = await asked
    transport = meeting._writer.transport
    transport.write(b"\x02\x83\0\0\0\0one")  # a fragment that is not the last
    assert await answer.content.readany() == b"one"
    transport.write(b"\x80\x83\0\0\0\0two")
    assert await answer.content.read() == b"two"
    answer.release()


async def test_a_slow_requester_stops_the_rendezvous(served):
    listener = await served.listen()
    headers = {"ServiceBusAuthorization": served.token("sender")}
    asked = asyncio.create_task(served.http.get(f"http://{served.host}/stock", headers=headers))
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    answer = await asked
    sending = asyncio.create_task(meeting.send_bytes(b"x" * (16 << 20)))
    await passes(100)
    # What is buffered is bounded by the sockets' buffers and those of one exchange.
    assert not sending.done()
    total = 0
    async for part in answer.content.iter_any():
        total += len(part)
    assert total == 16 << 20
    await sending


async def test_a_requester_that_takes_nothing_of_its_answer_is_ended_i4(served, monkeypatch):
    monkeypatch.setattr(request_module, "STALL_SECONDS", 0.2)
    listener = await served.listen()
    reader, writer = await asyncio.open_connection(*served.host.split(":"), limit=1)
    writer.write(
        f"GET /stock HTTP/1.1\r\nHost: h\r\nServiceBusAuthorization: {served.token('sender')}\r\n\r\n".encode()
    )
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    sending = asyncio.create_task(meeting.send_bytes(b"x" * (16 << 20)))
    assert (await meeting.receive(timeout=10)).data == 1001
    await until_async(lambda: served.relay._at_work == 0)
    sending.cancel()
    writer.close()
    assert reader


@pytest.mark.parametrize("large", [False, True])
async def test_a_listener_that_goes_leaves_a_clear_answer_i2(served, large):
    listener = await served.listen()
    asked = served.begin("stock", "POST", data=b"x" * (100_000 if large else 1))
    await listener.reported()
    await listener.socket.close()
    status, body, answer = await asked
    # 502: no listener has it. 504: a listener may have it.
    assert (status, "Via" in answer.headers) == (502 if large else 504, False)
    assert b"The listener is gone" in body


def hurry(served):
    """Shorten the time that listeners have."""
    served.relay.limits = replace(served.relay.limits, relay_accept_timeout_ms=300, relay_response_timeout_ms=300)


async def test_a_listener_that_does_not_answer_in_time(served):
    hurry(served)
    listener = await served.listen()
    asked = [served.begin("stock"), served.begin("stock", "POST", data=b"x" * 100_000)]
    assert sorted([(await each)[0] for each in asked]) == [502, 504]
    assert (await served.request("stock", "GET"))[0] == 504
    assert served.relay.rows()[2].unanswered_total == 3
    await listener.socket.close()


async def test_a_request_that_takes_long_to_come_is_answered_in_time_behind_its_end(served):
    """Its parts come in time, and together take longer than a listener may need for its answer."""
    hurry(served)
    listener = await served.listen()
    parts: asyncio.Queue[bytes] = asyncio.Queue()

    async def body():
        while part := await parts.get():
            yield part

    asked = served.begin("stock", "POST", data=body())
    parts.put_nowait(b"x")
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.receive_json()
    for part in (*[b"x"] * 8, b""):
        await passes(40)
        parts.put_nowait(part)
    assert (await meeting.receive(timeout=10)).data == b"x" * 9
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200}})
    assert (await asked)[0] == 200


async def test_half_an_answer_ends_the_connection(served):
    listener = await served.listen()
    asked = served.begin("stock")
    reported = (await listener.reported())["request"]
    meeting = await listener.meet(reported["address"])
    await meeting.send_json({"response": {"requestId": reported["id"], "statusCode": 200, "body": True}})
    meeting._writer.transport.write(b"\x02\x83\0\0\0\0one")
    await passes(20)
    meeting._writer.transport.abort()
    with pytest.raises(aiohttp.ClientError):
        await asked


async def test_a_large_answer_over_the_control_channel_fails_alone(served):
    listener = await served.listen()
    headers = {"ServiceBusAuthorization": served.token("sender")}
    asked = asyncio.create_task(served.http.get(f"http://{served.host}/stock", headers=headers))
    reported = (await listener.reported())["request"]
    await listener.answer(reported, b"x" * (32 << 20))
    with pytest.raises(aiohttp.ClientError):
        async with await asked as answer:
            await answer.read()
    other = served.begin("stock")
    await listener.answer((await listener.reported())["request"], b"fine")
    assert (await other)[1] == b"fine"


async def test_a_body_that_breaks_off_is_the_requester_s_fault(served, caplog):
    listener = await served.listen()
    token = served.token("sender")
    for framing, body in (("Transfer-Encoding: chunked", "5\r\nhello\r\n"), ("Content-Length: 10", "hello")):
        _, writer = await asyncio.open_connection(*served.host.split(":"))
        head = f"POST /stock HTTP/1.1\r\nHost: h\r\nServiceBusAuthorization: {token}\r\n{framing}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        if "chunked" in framing:
            meeting = await listener.meet((await listener.reported())["request"]["address"])
            await meeting.receive_json()
            writer.close()
            assert (await meeting.receive(timeout=10)).data == 1001
        else:
            await until_async(lambda: served.relay._at_work)
            writer.close()
    await until_async(lambda: served.relay._at_work == 0)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_head_and_options(served):
    listener = await served.listen()
    for method in ("HEAD", "OPTIONS"):
        asked = served.begin("stock", method)
        request = (await listener.reported())["request"]
        assert request["method"] == method
        await listener.answer(request, b"body", responseHeaders={"Allow": "GET"})
        status, body, answer = await asked
        assert (status, body, answer.headers["Allow"]) == (200, b"" if method == "HEAD" else b"body", "GET")


# ---- who may


async def test_rights_and_tokens(served):
    cases = [
        ("stock", {}, 401, "MissingToken"),
        ("stock", {"ServiceBusAuthorization": "nonsense"}, 401, "kind"),
        ("stock", {"ServiceBusAuthorization": served.token("sender", seconds=-1)}, 401, "expired"),
        ("stock", {"ServiceBusAuthorization": served.token("sender", path="shop")}, 401, "does not cover"),
        ("stock", {"ServiceBusAuthorization": served.token("listener")}, 403, "Send"),
        ("stock", {"ServiceBusAuthorization": served.token("sender")}, 502, "no listeners"),
        ("stock", {"Authorization": served.token("sender", path="stock")}, 502, "no listeners"),
        ("stock/x", {"Authorization": served.token("sender", path="stock/x")}, 502, "no listeners"),
        ("stock", {"Authorization": served.token("sender", path="stock/x")}, 401, "does not cover"),
        # What a service may read as another path than the token's is open to a token for all of them only.
        ("stock/x/../y", {"Authorization": served.token("sender", path="stock/x")}, 401, "does not cover"),
        ("stock/x/%2E%2e%2fy", {"Authorization": served.token("sender", path="stock/x")}, 401, "does not cover"),
        ("stock/x/..;/y", {"Authorization": served.token("sender", path="stock/x")}, 401, "does not cover"),
        ("stock/x%5C..%5Cy", {"Authorization": served.token("sender", path="stock/x")}, 401, "does not cover"),
        ("stock/x/../y", {"Authorization": served.token("sender", path="stock")}, 502, "no listeners"),
        ("stock/x/..y;z", {"Authorization": served.token("sender", path="stock/x")}, 502, "no listeners"),
        ("open", {}, 502, "no listeners"),
        ("shop/prices/today", {"ServiceBusAuthorization": served.token("sender")}, 502, "'shop/prices'"),
    ]
    for path, headers, status, reported in cases:
        async with served.http.get(URL(f"http://{served.host}/{path}", encoded=True), headers=headers) as answer:
            assert (answer.status, reported in await answer.text()) == (status, True), (path, headers, answer.reason)
            assert re.search(r"TrackingId:[0-9a-f]{16}", answer.reason)
    token = served.token("sender")
    async with served.http.get(f"http://{served.host}/stock", params={"sb-hc-token": token}) as answer:
        assert answer.status == 502


async def test_who_may_listen(served):
    assert await refusal(served.listen(token=served.token("sender"))) == 403
    assert "has not Listen on 'stock'" in await phrase(served, "stock", "listen", "sender")
    assert "Endpoint does not exist" in await phrase(served, "none", "listen", "listener")
    assert await refusal(served.http.ws_connect(served.address("open", "listen"))) == 401
    assert await refusal(served.listen("none", served.token())) == 404
    assert await refusal(served.http.ws_connect(served.address("none", "listen"))) == 401
    assert await refusal(served.http.ws_connect(served.address("stock", "dance"))) == 400
    async with served.http.get(served.address("stock", "listen", "http")) as answer:
        assert answer.status == 400


async def test_an_own_token_reaches_no_client_and_others_pass(served):
    listener = await served.listen("open")
    asked = served.begin("open?sb-hc-token=secret&x=1", headers={"Authorization": "Basic mine"})
    reported = (await listener.reported())["request"]
    assert reported["requestTarget"] == "/open?x=1"
    assert reported["requestHeaders"]["Authorization"] == "Basic mine"
    assert "ServiceBusAuthorization" not in reported["requestHeaders"]
    await listener.answer(reported)
    assert (await asked)[0] == 200


async def test_a_token_is_renewed_or_the_channel_ends_i2(served):
    kept = await served.listen(token=served.token("listener", seconds=2))
    await kept.socket.send_json({"renewToken": {"token": served.token("listener")}})
    ended = await served.listen(token=served.token("listener", seconds=2))
    assert (await ended.closed())[0] == 1008
    wrong = await served.listen()
    await wrong.socket.send_json({"renewToken": {"token": served.token("sender")}})
    assert (await wrong.closed())[0] == 1008
    asked = served.begin()
    await kept.answer((await kept.reported())["request"])
    assert (await asked)[0] == 200


async def test_a_key_that_is_taken_away_ends_its_channels_i2(served):
    listener = await served.listen()
    authority = served.namespace.authority
    authority.keyring.replace([rule for rule in authority.keyring.rules if rule.key_name != "listener"])
    assert (await listener.closed())[0] == 1008


# ---- connections


async def test_a_connection_is_relayed_frame_by_frame(served):
    listener = await served.listen()
    connecting = served.connect("stock/more?x=1&sb-hc-id=me", protocols=("own", "other"), headers={"X-Own": "1"})
    reported = (await listener.reported())["accept"]
    assert reported["id"] == "me"
    assert reported["connectHeaders"]["X-Own"] == "1"
    assert "ServiceBusAuthorization" not in reported["connectHeaders"]
    assert "/$hc/stock/more?x=1&" in reported["address"]
    theirs = await listener.meet(reported["address"], protocols=("other",))
    mine = await connecting
    assert (mine.protocol, theirs.protocol) == ("other", "other")
    await mine.send_str("text")
    await mine.send_bytes(b"x" * 3_000_000)
    await mine.ping(b"there?")
    received = [await theirs.receive(timeout=10) for _ in range(3)]
    assert [each.type for each in received] == [WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.PING]
    assert (received[0].data, len(received[1].data), received[2].data) == ("text", 3_000_000, b"there?")
    await theirs.pong(b"there?")
    await theirs.send_bytes(b"")
    assert [(await mine.receive(timeout=10)).type for _ in range(2)] == [WSMsgType.PONG, WSMsgType.BINARY]
    assert served.relay.rows()[2].connections == 1
    closing = asyncio.create_task(theirs.close(code=4001, message=b"done"))
    closed = await mine.receive(timeout=10)
    assert (closed.data, closed.extra) == (4001, "done")
    await closing
    await until_async(lambda: not served.relay.rows()[2].connections)
    assert served.relay.rows()[2].bytes_total == 3_000_004


async def test_what_a_listener_says_at_once_waits_for_the_requester(served):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    await theirs.send_str("welcome")
    assert (await (await connecting).receive(timeout=10)).data == "welcome"


@pytest.mark.parametrize("side", ["requester", "listener"])
async def test_when_one_side_vanishes_the_other_is_closed_i3(served, side):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    mine = await connecting
    lost, other = (mine, theirs) if side == "requester" else (theirs, mine)
    lost._writer.transport.abort()
    assert (await other.receive(timeout=10)).data == 1001
    await other.close()
    await until_async(lambda: served.relay._at_work == 0)


async def test_a_side_that_does_not_read_stops_the_other_i2(served):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    mine = await connecting
    theirs._response.connection.transport.pause_reading()
    sending = asyncio.create_task(mine.send_bytes(b"x" * (16 << 20)))
    await passes(100)
    assert not sending.done()
    theirs._response.connection.transport.resume_reading()
    assert len((await theirs.receive(timeout=20)).data) == 16 << 20
    await sending


@pytest.mark.parametrize("leave", ["abort", "close"])
async def test_who_left_is_noticed_behind_a_side_that_does_not_read_i4(served, leave):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    mine = await connecting
    theirs._response.connection.transport.pause_reading()
    (tunnel,) = served.relay._served["stock"].tunnels
    async with asyncio.timeout(20):
        while tunnel._ends[1].mine.is_writable:
            mine._writer.transport.write(b"\x82\xfe\xff\xff\0\0\0\0" + bytes(0xFFFF))
            await passes(1)
    now = asyncio.get_running_loop().time()
    tunnel.tick(now)
    tunnel.tick(now + 1000)
    assert served.relay.rows()[2].connections == 1
    getattr(mine._writer.transport, leave)()
    await until_async(lambda: tunnel._ends[0].mine.has_left)
    tunnel.tick(now + 2000)
    tunnel.tick(now + 2000 + STALL_SECONDS / 2)
    assert served.relay.rows()[2].connections == 1
    tunnel.tick(now + 2001 + STALL_SECONDS)
    await until_async(lambda: served.relay._at_work == 0)


async def test_sockets_of_a_listener_are_no_strangers(served):
    """A requester that shows an address given only to a listener has no precedence over others."""
    listener = await served.listen()
    connecting = served.connect()
    connected = await listener.meet((await listener.reported())["accept"]["address"])
    await connecting
    asked = served.begin("stock", "PUT", data=bytes(100_000))
    fetched = await listener.meet((await listener.reported())["request"]["address"])
    await fetched.receive_json()
    assert served.namespace.admission.strangers == 0
    assert served.namespace.admission.sockets == 5
    await asyncio.gather(connected.close(), fetched.close())
    assert (await asked)[0] == 504


@pytest.mark.parametrize(
    "query", ["statusCode=404&statusDescription=x", "sb%2Dhc-statusCode=404", "s%62-hc-rendezvous=x"]
)
async def test_a_query_of_the_requesters_rejects_nothing(served, query):
    listener = await served.listen()
    url = URL(served.address(f"stock?{query}", "connect"), encoded=True)
    headers = {"ServiceBusAuthorization": served.token("sender")}
    connecting = asyncio.create_task(served.http.ws_connect(url, headers=headers))
    address = (await listener.reported())["accept"]["address"]
    assert ("statusCode" in address) is query.startswith("status")
    meeting = await listener.meet(URL(address, encoded=True))
    await asyncio.gather((await connecting).close(), meeting.close())


async def test_a_listener_rejects_a_connection(served):
    listener = await served.listen()
    for names, expected in (
        ("sb-hc-statusCode=418&sb-hc-statusDescription=no%20tea", (418, "no tea")),
        ("statusCode=400&statusDescription=Bad", (400, "Bad")),
        ("sb-hc-statusCode=200", (502, "rejected")),
    ):
        connecting = asyncio.create_task(phrase(served, "stock", "connect", "sender"))
        address = (await listener.reported())["accept"]["address"]
        assert await refusal(listener.meet(f"{address}&{names}")) == 410
        assert expected[1] in await connecting
        connecting = served.connect()
        address = (await listener.reported())["accept"]["address"]
        assert await refusal(listener.meet(f"{address}&{names}")) == 410
        assert await refusal(connecting) == expected[0]


async def test_connections_that_are_not_accepted(served):
    hurry(served)
    assert await refusal(served.connect()) == 404
    listener = await served.listen()
    connecting = served.connect()
    address = (await listener.reported())["accept"]["address"]
    assert await refusal(connecting) == 504
    assert await refusal(listener.meet(address)) == 403
    assert await refusal(served.connect(headers={"ServiceBusAuthorization": served.token("listener")})) == 403
    assert served.relay._at_work == 0


# ---- listeners


async def test_listeners_share_what_comes_and_are_limited(served):
    listeners = [await served.listen() for _ in range(2)]
    assert await refusal(served.listen()) == 503
    assert "2 listeners" in await phrase(served, "stock", "listen", "listener")
    seen = [0, 0]

    async def answer(number):
        while True:
            await listeners[number].answer((await listeners[number].reported())["request"])
            seen[number] += 1

    answering = [asyncio.create_task(answer(number)) for number in range(2)]
    for _ in range(30):
        assert (await served.request())[0] == 200
    assert min(seen) > 0
    for each in answering:
        each.cancel()
    await asyncio.gather(*answering, return_exceptions=True)
    for each in listeners:
        await each.socket.close()


async def test_a_listener_that_is_silent_is_dropped_i3(served, monkeypatch):
    monkeypatch.setattr(listener_module, "PING_SECONDS", 0.0)
    monkeypatch.setattr(listener_module, "SILENCE_SECONDS", 2.5)
    silent = await served.listen(autoping=False)
    there = await served.listen()
    reading = asyncio.create_task(there.reported())
    await until_async(lambda: served.relay.listeners("stock") == 1)
    asked = served.begin()
    await there.answer((await reading)["request"])
    assert (await asked)[0] == 200
    silent.socket._response.close()


async def test_nonsense_of_a_listener_ends_its_channel(served):
    for text, status in (("{", 1002), ("x" * 200_000, 1009)):
        listener = await served.listen()
        await listener.socket.send_str(text)
        assert (await listener.closed())[0] == status
        await listener.socket.close()


@pytest.mark.parametrize("how", ["deleted", "disabled"])
async def test_a_hybrid_connection_that_goes_takes_all_with_it(served, how):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    mine = await connecting
    asked = served.begin()
    await listener.reported()
    hybrids = served.namespace.engine.hybrid_connections
    if how == "deleted":
        hybrids.delete("stock")
    else:
        hybrids.update("stock", HybridConnectionDescription(status=EntityStatus.DISABLED))
    assert (await asked)[0] == 504
    assert (await listener.closed())[0] == 1001
    assert (await mine.receive(timeout=10)).data == 1001
    assert (await theirs.receive(timeout=10)).data == 1001
    expected = (404, 404) if how == "deleted" else (503, 503)
    assert await refusal(served.listen()) == expected[0]
    assert await refusal(served.connect()) == expected[1]


async def test_too_much_at_once_is_refused(served):
    hurry(served)
    listener = await served.listen()
    asked = [served.begin() for _ in range(25)]
    answers = [await each for each in asked]
    assert sorted(answer[0] for answer in answers) == [503] * 5 + [504] * 20
    busy = next(answer for answer in answers if answer[0] == 503)
    assert (busy[2].headers["Retry-After"], b"20 connections" in busy[1]) == ("1", True)
    assert served.relay._at_work == 0
    await listener.socket.close()


async def test_numbers(served):
    listener = await served.listen()
    asked = served.begin("stock", "POST", data=b"1234")
    await listener.answer((await listener.reported())["request"], b"123456")
    await asked
    await served.request("shop/prices")
    async with served.http.get(f"http://{served.host}/metrics") as answer:
        text = await answer.text()
    for name, entity, value in (
        ("listeners", "stock", 1), ("relayed_requests_total", "stock", 1), ("relayed_bytes_total", "stock", 10),
        ("relay_refused_total", "shop/prices", 1),
    ):  # fmt: skip
        assert f'isthmus_entity_{name}{{entity="{entity}",kind="hybrid connection"}} {value}\n' in text
    async with served.http.get(f"http://{served.host}/health") as answer:
        assert (await answer.json())["hybrid_connections_without_listener"] == 2
    headers = {"Authorization": served.token()}
    async with served.http.get(f"http://{served.host}/$isthmus/statistics", headers=headers) as answer:
        rows = {row["entity"]: row for row in (await answer.json())["hybrid_connections"]}
    assert (rows["stock"]["listeners"], rows["stock"]["requests_total"]) == (1, 1)


async def test_the_administration_api_beside_it(served):
    listener = await served.listen()
    headers = {"Authorization": served.token()}
    async with served.http.get(f"http://{served.host}/stock?api-version=2016-07", headers=headers) as answer:
        text = await answer.text()
    assert "<ListenerCount>1</ListenerCount>" in text
    async with served.http.get(f"http://{served.host}/orders?api-version=2017-04", headers=headers) as answer:
        assert "QueueDescription" in await answer.text()
    await listener.socket.close()


async def test_a_namespace_that_stops_says_so(served):
    listener = await served.listen()
    connecting = served.connect()
    theirs = await listener.meet((await listener.reported())["accept"]["address"])
    mine = await connecting
    stopping = asyncio.create_task(served.server.stop())
    assert await listener.closed() == (1001, "The namespace is stopping.")
    for socket in (mine, theirs):
        assert (await socket.receive(timeout=10)).data == 1001
        await socket.close()
    await asyncio.wait_for(stopping, 10)


async def test_a_listener_that_accepts_as_the_time_ends_is_met_i1():
    """Its socket, which was taken already, would have no owner and never end."""
    partner = object(), "sub"

    def send(text):
        asyncio.get_running_loop().call_soon(places[0].joined.set_result, partner)

    places = []
    gate = gate_module._Gate.__new__(gate_module._Gate)
    gate._relay = SimpleNamespace(
        limits=SimpleNamespace(relay_accept_timeout_ms=0),
        open_rendezvous=lambda pending: places.append(pending) or "secret",
        close_rendezvous=lambda secret: None,
    )
    gate._choose = lambda name, status: SimpleNamespace(origin="wss://host", send=send)
    gate._strips_authorization = lambda http, name: False
    http = make_mocked_request("GET", "/$hc/echo?sb-hc-action=connect")
    assert await gate._find_partner(http, "echo") == partner
