"""Lock tokens on their way from workers to the driver, for settling at commit.

What it is: a socket of this user's alone at the driver, and the call by which a worker hands over a batch's tokens. What
it is not: the settling (`lookout`).

Invariants:
    I1. Only who has the key, which Spark carries to the workers, is heard.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from multiprocessing.connection import Client as DialCollector
from multiprocessing.connection import Connection as CollectorConnection
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from isthmus.connectors.servicebus.channel import Claim, private_directory

__all__ = ["TokenCollector", "hand_over_tokens"]


def hand_over_tokens(collector: tuple[str, bytes], lease: int, tokens: list[bytes]) -> None:
    """In the worker: gives a lease's tokens to the driver, and waits until it has them."""
    address, key = collector
    with DialCollector(address, "AF_UNIX", key) as connection:
        connection.send_bytes(lease.to_bytes(8, "big") + b"".join(tokens))
        connection.recv_bytes()


class TokenCollector:
    """Takes lock tokens from the workers, for settling at commit; one thread."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self.address = str(private_directory() / f"{secrets.token_hex(16)}.tokens")
        self._tokens: dict[int, list[bytes]] = {}
        self._claim = Claim(Path(self.address))
        self._listener = Listener(self.address, "AF_UNIX", backlog=16, authkey=self.key)
        threading.Thread(target=self._serve, name="tokens", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                return
            except Exception:  # noqa: BLE001, S112 - a caller without the key is turned away; the next may have it
                continue
            with contextlib.suppress(OSError, EOFError), connection:
                self._take(connection)

    def _take(self, connection: CollectorConnection[Any, Any]) -> None:
        data = connection.recv_bytes()
        self._tokens.setdefault(int.from_bytes(data[:8], "big"), []).append(data[8:])
        connection.send_bytes(b"taken")

    def through(self, lease: int) -> list[bytes]:
        """The tokens of leases up to `lease`; they are forgotten here."""
        found = [self._tokens.pop(number) for number in sorted(self._tokens) if number <= lease]
        joined = b"".join(part for parts in found for part in parts)
        return [joined[at : at + 16] for at in range(0, len(joined), 16)]

    def close(self) -> None:
        """Closes the socket."""
        self._listener.close()
        self._claim.discard()
