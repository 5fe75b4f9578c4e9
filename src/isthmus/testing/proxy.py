"""A TCP proxy on this machine with configurable delay and faults.

What it is: one thread that passes bytes both ways between its clients and one address, through a delay line for each direction
(`delay_line`), and that can cut connections, refuse new ones, or stall. What it is not: a model of packets: the
connection itself is TCP over loopback, so that no byte is lost or repeated within a connection.

Invariants:
    I1. Bytes that one end has sent before it closes its side reach the other, unless the connection is cut.
    I2. No more than `Weather.buffer_bytes` and one read are kept for a direction; then the sender's own TCP stops it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isthmus.testing.delay_line import DelayLine, Weather

__all__ = ["Proxy", "Weather", "proxy"]

READ_BYTES = 1 << 18
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset
_JOIN_SECONDS = 10.0
Rewrite = Callable[[bytes], bytes]


class Proxy:
    """A proxy before `host`:`port`; its methods may be called from any thread.

    Args:
        host: of the server.
        port: of the server.
        rewrite: changes the bytes that go to the client, e.g. addresses in the server's answers; must keep their number.

    Attributes:
        port: where it listens, on 127.0.0.1.
        accepted: how many connections have been made through it.
        refused: how many connections were reset at once.
        bytes_there: how many bytes clients have sent through it.
    """

    def __init__(
        self, port: int, host: str = "127.0.0.1", rewrite: Callable[[bytes, int], bytes] | None = None
    ) -> None:
        self._address = (host, port)
        self._rewrite = rewrite
        self._weather = (Weather(), Weather())
        self._refuses = False
        self._cuts = 0
        self._pairs: set[_Pair] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.setblocking(False)
        self.port: int = self._door.getsockname()[1]
        self.accepted = self.refused = self.bytes_there = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="isthmus-proxy", daemon=True)
        self._thread.start()

    # ---- for the test

    def set_weather(self, there: Weather, back: Weather | None = None) -> None:
        """Changes the behaviour of connections, also of open ones; `back` is the direction to the client, by default the same."""
        self._weather = (there, back or there)

        def change() -> None:
            for pair in self._pairs:
                pair.set_weather(*self._weather)

        self._call(change)

    def set_round_trip(self, seconds: float, **values: float) -> None:
        """Sets a round trip of so many seconds, half in each direction, and further values of `Weather` for both."""
        self.set_weather(Weather(delay_seconds=seconds / 2, **values))  # type: ignore[arg-type]  # buffer_bytes is a whole number

    def cut(self) -> int:
        """Resets all connections, and loses the bytes in transit; returns how many there were."""
        return self._call(self._cut)

    def _cut(self) -> int:
        self._cuts += 1
        return sum(pair.reset() for pair in tuple(self._pairs))

    def refuse(self, refuses: bool = True) -> None:
        """Makes new connections be reset at once, or ends that."""
        self._refuses = refuses

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._pairs)

    def close(self) -> None:
        """Ends it, and all connections."""
        if self._thread.is_alive():
            self.cut()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_JOIN_SECONDS)

    # ---- the thread

    def _call(self, what: Callable[[], object]) -> int:
        done: list[object] = []
        event = threading.Event()

        def act() -> None:
            done.append(what())
            event.set()

        self._loop.call_soon_threadsafe(act)
        event.wait(_JOIN_SECONDS)
        return done[0] if done and isinstance(done[0], int) else 0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._door, self._accept)
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(self._door)
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._door.close()
            self._loop.close()

    def _accept(self) -> None:
        try:
            client, _ = self._door.accept()
        except OSError:  # the client has closed it already
            return
        task = self._loop.create_task(self._serve(client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        task.add_done_callback(lambda _: client.close())  # also of one that was cancelled before it began

    def _raise_refusal(self) -> None:
        if self._refuses:
            self.refused += 1
            raise ConnectionError("refused")

    def _counted(self, data: bytes) -> bytes:
        self.bytes_there += len(data)
        return data

    async def _serve(self, client: socket.socket) -> None:
        server = socket.socket()
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rewrite = self._rewrite
        back = None if rewrite is None else lambda data: rewrite(data, self.port)
        pair = _Pair(client, server, self._weather, self._counted, back)
        cuts = self._cuts
        try:
            self._raise_refusal()
            await self._loop.sock_connect(server, self._address)
            self._raise_refusal()  # meanwhile `refuse` or `cut` may have been called
            if cuts != self._cuts:
                raise ConnectionError("cut")
            self.accepted += 1
            pair.set_weather(*self._weather)  # `weather` may have changed meanwhile
            self._pairs.add(pair)
            await pair.pass_bytes()
        except OSError:
            pair.reset()
        finally:
            self._pairs.discard(pair)
            client.close()
            server.close()


class _Pair:
    """One connection: the client's socket and the one to the server."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        weather: tuple[Weather, Weather],
        there: Rewrite,
        back: Rewrite | None,
    ) -> None:
        self._sockets = (client, server)
        self._ways = (_Way(client, server, weather[0], 1, there), _Way(server, client, weather[1], 2, back))
        self._tasks: list[asyncio.Task[None]] = []

    def set_weather(self, there: Weather, back: Weather) -> None:
        for way, weather in zip(self._ways, (there, back), strict=True):
            way.line.weather = weather
            way.changed.set()

    async def pass_bytes(self) -> None:
        """Passes bytes until both sides have ended, or one is lost."""
        self._tasks = [asyncio.ensure_future(call()) for way in self._ways for call in (way.read, way.write)]
        try:
            await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            raise OSError("the connection was cut") from None
        finally:
            for task in self._tasks:
                task.cancel()

    def reset(self) -> int:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        for task in self._tasks:
            task.cancel()
        return 1


class _Way:
    """One direction of a connection."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, weather: Weather, seed: int, rewrite: Rewrite | None = None
    ) -> None:
        self.line = DelayLine(weather, seed)
        self.changed = asyncio.Event()
        self._source, self._sink, self._rewrite = source, sink, rewrite
        self._taken = asyncio.Event()
        self._has_ended = False

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.line.has_room:
                self._taken.clear()
                await self._taken.wait()
            # A piece comes out as a whole: with a small buffer, a slow connection delivers small ones.
            data = await loop.sock_recv(self._source, max(1, min(READ_BYTES, self.line.weather.buffer_bytes)))
            if not data:
                break
            self.line.add(data if self._rewrite is None else self._rewrite(data), loop.time())
            self.changed.set()
        self._has_ended = True
        self.changed.set()

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while self.line or not self._has_ended:
            self.changed.clear()
            due = self.line.due()
            wait = due - loop.time()
            if wait > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), None if due == math.inf else wait)
                continue
            data = b"".join(self.line.take(loop.time()))
            self._taken.set()
            await loop.sock_sendall(self._sink, data)
        with contextlib.suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(port: int, host: str = "127.0.0.1") -> Iterator[Proxy]:
    """A proxy for the length of the `with` block."""
    made = Proxy(port, host)
    try:
        yield made
    finally:
        made.close()
