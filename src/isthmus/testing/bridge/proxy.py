"""A way between two sockets that can be cut, as the death of a process cuts it.

What it is: a listener that connects each caller with another address and passes bytes both ways in its own thread. What it is not: a
model of a network with delay.

Invariants:
    I1. After `cut` nothing that either side writes arrives, and both see the end of the connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Proxy"]

_BYTES = 1 << 16
_DIAL_SECONDS = 5.0


class Proxy:
    """The way.

    Args:
        listener: a socket, or what has its `accept` and `fileno`.
        dial: connects with the other side; None: nobody listens there.
    """

    def __init__(self, listener: Any, dial: Callable[[], socket.socket | None]) -> None:
        self._listener = listener
        self._dial = dial
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_cut = False
        self._wakes, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Ends it; what is under way is lost."""
        with self._lock:
            if self._is_cut:
                return
            self._is_cut = True
            for each in self._pairs:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._wakes.send(b"x")

    def close(self) -> None:
        """Cuts it and waits for its thread."""
        self.cut()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._is_cut:
            readable = [self._listener.fileno(), self._woken, *self._pairs]
            ready = select.select(readable, [], [], 1.0)[0]
            with self._lock:
                if self._is_cut:
                    break
            for each in ready:
                if each == self._listener.fileno():
                    self._accept()
                elif isinstance(each, socket.socket) and each in self._pairs:
                    self._pass_on(each)
        for each in self._pairs:
            each.close()
        self._listener.close()
        self._wakes.close()
        self._woken.close()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        near.setblocking(True)
        deadline = time.monotonic() + _DIAL_SECONDS
        while (far := self._dial()) is None and not self._is_cut and time.monotonic() < deadline:
            time.sleep(0.002)  # the other side is about to listen
        with self._lock:
            if far is None or self._is_cut:
                near.close()
                if far is not None:
                    far.close()
                return
            far.setblocking(True)
            self._pairs[near], self._pairs[far] = far, near

    def _pass_on(self, source: socket.socket) -> None:
        target = self._pairs[source]
        try:
            data = source.recv(_BYTES)
            if data:
                target.sendall(data)
                return
        except OSError:
            data = b""
        with self._lock:  # one side is done: so is the other
            del self._pairs[source]
            self._pairs.pop(target, None)
        source.close()
        with contextlib.suppress(OSError):
            target.close()
