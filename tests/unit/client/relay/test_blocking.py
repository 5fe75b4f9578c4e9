"""isthmus.client.relay.blocking: threads that wait while it is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from isthmus.client.relay.blocking import RelayListener, RelayRequester, _Loop
from isthmus.errors import ConnectionLostError

RELAY = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=k;SharedAccessKey=v;UseDevelopmentEmulator=true"
SECONDS = 10.0


def test_a_waiting_thread_gets_an_error_where_another_closes_the_requester() -> None:
    """It would wait for ever: its request continues at the other relay, in a loop that has ended."""
    requester = RelayRequester(RELAY, RELAY, "orders")
    began = threading.Event()

    async def attempt(*_: Any) -> Any:
        began.set()
        await asyncio.Event().wait()

    inner: Any = requester._inner
    inner._request = attempt
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(requester.request, "GET")
        assert began.wait(SECONDS)
        closing = threading.Thread(target=requester.close)
        closing.start()
        closing.join(SECONDS)
        with pytest.raises(ConnectionLostError, match="was closed"):
            waiting.result(SECONDS)


@pytest.mark.parametrize(
    "use", [lambda each: each.request("GET"), lambda each: each.connect()], ids=["request", "connect"]
)
def test_a_requester_that_is_closed_says_so(use: Callable[[RelayRequester], Any]) -> None:
    requester = RelayRequester(RELAY, None, "orders")
    requester.close()
    requester.close()
    with pytest.raises(ConnectionLostError, match="was closed"):
        use(requester)


def test_a_thread_that_waits_until_it_listens_gets_an_error_where_another_closes_the_listener() -> None:
    listener = RelayListener(RELAY, None, "orders", on_request=lambda _: None)  # type: ignore[arg-type,return-value]
    began = threading.Event()
    inner: Any = listener._inner
    wait_listening = inner.wait_listening

    async def wait(*arguments: Any) -> None:
        began.set()
        await wait_listening(*arguments)

    inner.wait_listening = wait
    with ThreadPoolExecutor(1) as pool:
        with listener:
            waiting = pool.submit(listener.wait_listening)
            assert began.wait(SECONDS)
        with pytest.raises(ConnectionLostError, match="was closed"):
            waiting.result(SECONDS)


def test_what_ends_by_itself_as_the_loop_is_closed_has_its_result() -> None:
    loop = _Loop("test")

    async def work() -> int:
        return 7

    assert loop.run(work()) == 7
    loop.close()
