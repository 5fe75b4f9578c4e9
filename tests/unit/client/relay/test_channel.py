"""A listener's handling of an address from a relay, and of an unavailable token service."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError

from isthmus.client import RelayResponse, RelayUnavailableError
from isthmus.client.aio import RelayRequester
from isthmus.client.endpoint import EndpointError
from isthmus.client.relay import channel as channel_module
from isthmus.client.relay.address import RelayAddress
from isthmus.client.relay.channel import Channel, Handlers, _secured
from isthmus.client.relay.pair import Outcome
from isthmus.client.relay.requester import _Failed
from isthmus.transport.credential import TokenError

KEY = "SharedAccessKeyName=k;SharedAccessKey=v"


@pytest.mark.parametrize(
    ("more", "reported", "wanted"),
    [
        ("", "ws://relay.example.org/$hc/orders?a=1", "wss://relay.example.org/$hc/orders?a=1"),
        ("", "wss://relay.example.org/$hc/orders", "wss://relay.example.org/$hc/orders"),
        (";UseDevelopmentEmulator=true", "ws://relay.example.org/$hc/orders", "ws://relay.example.org/$hc/orders"),
    ],
)
def test_a_listener_that_came_by_tls_never_continues_without(more: str, reported: str, wanted: str) -> None:
    resolved = RelayAddress(f"Endpoint=sb://relay.example.org/;{KEY}{more}", "orders").resolve()
    assert _secured(reported, resolved) == wanted


class Gone:
    """A credential whose token service cannot be reached."""

    def get_token(self, *scopes: str) -> Any:
        raise ServiceRequestError("no connection")


class GoneAsync:
    async def get_token(self, *scopes: str) -> Any:
        raise ServiceRequestError("no connection")


@pytest.mark.parametrize("credential", [Gone(), GoneAsync()])
async def test_a_token_service_that_was_stopped_is_no_end_of_the_other_relay(credential: Any) -> None:
    address = RelayAddress(("127.0.0.1", credential), "orders")
    with pytest.raises(TokenError, match="no connection"):
        await address.resolve().token()
    second = f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true"
    async with RelayRequester(("127.0.0.1", credential), second, "orders", timeout=1.0) as requester:
        with pytest.raises(RelayUnavailableError) as raised:
            await requester.request("GET")
    assert set(raised.value.attributes["failures"]) == {"primary", "secondary"}


@pytest.mark.parametrize("endpoint", ["sb://h:99999/", "sb://h:abc/", "sb://[::1/", "", "sb:///"])
def test_an_address_that_is_none_is_a_bad_endpoint(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="has no address of a relay") as raised:
        RelayAddress(f"Endpoint={endpoint};{KEY}", "orders").check()
    assert "SharedAccessKey" not in str(raised.value)


def test_authorities_that_cannot_be_read_are_a_bad_endpoint(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="No such file"):
        RelayAddress(f"Endpoint=sb://h/;{KEY}", "orders", connection_verify=str(tmp_path / "none.pem")).check()
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(EndpointError, match="cannot be read"):
        RelayAddress(f"Endpoint=sb://h/;{KEY}", "orders", connection_verify=str(tmp_path / "empty.pem")).check()


async def test_a_reference_that_became_wrong_is_no_end_of_the_other_relay(tmp_path: Path) -> None:
    file = tmp_path / "primary"
    file.write_text(f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true")
    second = f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true"
    async with RelayRequester(f"file:{file}", second, "orders", timeout=1.0) as requester:
        file.write_text("")  # it is being replaced
        with pytest.raises(RelayUnavailableError) as raised:
            await requester.request("GET")
    assert set(raised.value.attributes["failures"]) == {"primary", "secondary"}


async def test_a_refusal_of_the_other_relay_does_not_hide_that_the_first_may_have_handled_it() -> None:
    text = f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true"
    came = [_Failed(Outcome.UNKNOWN, "no answer"), _Failed(Outcome.REFUSED, "no claim", 401)]

    async def attempt(*_: Any) -> None:
        raise came.pop(0)

    async with RelayRequester(text, text, "orders") as requester:
        with pytest.raises(RelayUnavailableError, match="no claim") as raised:
            await requester._try(attempt, may_repeat=True)
        assert raised.value.attributes["unknown"]
        assert requester.statistics().unknown == 1


async def test_a_requester_that_is_closed_sends_nothing_more() -> None:
    """A request that continues at the other relay meanwhile would leave a connection that is never closed."""
    text = f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true"
    requester = RelayRequester(text, text, "orders")
    await requester.close()
    with pytest.raises(RelayUnavailableError, match="the requester was closed"):
        await requester.request("GET")
    assert requester._session is None


async def test_no_error_ends_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: asyncio.Queue[None] = asyncio.Queue()

    class Address:
        def resolve(self) -> Any:
            tries.put_nowait(None)
            raise RuntimeError("an unexpected error")

    class Backoff:
        def __init__(self, *_: float) -> None:
            pass

        def next_seconds(self) -> float:
            return 0.0

        def reset(self) -> None:
            pass

    monkeypatch.setattr(channel_module, "Backoff", Backoff)
    nothing: Any = None
    channel = Channel(
        "primary", Address(), Handlers(nothing, nothing), nothing, asyncio.Semaphore(), heartbeat=1.0, max_body_bytes=1,  # type: ignore[arg-type]
        on_change=lambda: None,
    )  # fmt: skip
    running = asyncio.create_task(channel.run())
    for _ in range(3):
        await asyncio.wait_for(tries.get(), 10)
    assert channel.state.error == "an unexpected error"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        RelayResponse(200, "text"),  # type: ignore[arg-type]
        RelayResponse(200, b"", {"Retry-After": 5}),  # type: ignore[dict-item]
        RelayResponse("200"),  # type: ignore[arg-type]
    ],
)
async def test_a_handler_that_gives_no_answer_leaves_no_caller_waiting_and_the_channel_whole(given: Any) -> None:
    """The head of an answer without its body would be taken together with the next answer."""
    sent: list[Any] = []

    class Control:
        async def send_json(self, reported: Any) -> None:
            sent.append(reported["response"])

        async def send_bytes(self, body: bytes) -> None:
            memoryview(body)
            sent.append(body)

    async def handler(request: Any) -> Any:
        return given

    nothing: Any = None
    channel = Channel(
        "primary", nothing, Handlers(handler, nothing), nothing, asyncio.Semaphore(), heartbeat=1.0, max_body_bytes=1,
        on_change=lambda: None,
    )  # fmt: skip
    reported = {"id": "1", "method": "GET", "requestTarget": "/orders", "address": "wss://relay"}
    channel._begin(lambda: channel._answer(Control(), reported, b"", nothing))  # type: ignore[arg-type]
    await asyncio.gather(*channel._working)
    head, body = sent
    assert (head["statusCode"], head["body"], body) == (500, True, b"The service failed.\n")
    assert channel.state.failed == 1


async def test_an_answer_that_could_not_be_given_is_not_counted_as_one() -> None:
    class Control:
        async def send_json(self, reported: Any) -> None:
            raise ConnectionResetError("the relay is gone")

    async def handler(request: Any) -> RelayResponse:
        return RelayResponse(200)

    nothing: Any = None
    channel = Channel(
        "primary", nothing, Handlers(handler, nothing), nothing, asyncio.Semaphore(), heartbeat=1.0, max_body_bytes=1,
        on_change=lambda: None,
    )  # fmt: skip
    reported = {"id": "1", "method": "GET", "requestTarget": "/orders", "address": "wss://relay"}
    channel._begin(lambda: channel._answer(Control(), reported, b"", nothing))  # type: ignore[arg-type]
    await asyncio.gather(*channel._working)
    assert (channel.state.requests, channel.state.failed) == (0, 1)


async def test_a_listener_that_is_closed_as_its_channel_ends_is_closed() -> None:
    """Its end is waited for."""

    class Control:
        close_code = 1000

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            await asyncio.sleep(0)
            raise StopAsyncIteration

    nothing: Any = None
    session: Any = SimpleNamespace(ws_connect=lambda *args, **options: Control())
    channel = Channel(
        "primary", RelayAddress(f"Endpoint=sb://127.0.0.1:1/;{KEY};UseDevelopmentEmulator=true", "orders"), Handlers(nothing, nothing),
        session, asyncio.Semaphore(), heartbeat=1.0, max_body_bytes=1,
        on_change=lambda: None if channel.state.is_listening else bool(listening.cancel()),
    )  # fmt: skip
    listening = asyncio.create_task(channel._listen())
    with pytest.raises(asyncio.CancelledError):
        await listening
