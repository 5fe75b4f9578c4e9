"""Lock tokens on their way from workers to the driver, for settling at commit.

What it is: a socket of this user's alone at the driver, and the call by which a worker hands over a batch's tokens. What
it is not: the settling (`lookout`).

Invariants:
    I1. Only who has the key, which Spark carries to the workers, is heard.
    I2. Of a reader that Spark ran more than once for a lease only the last attempt's tokens count: what an earlier one read
        went nowhere, and comes again once its locks have expired.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import threading
from multiprocessing.connection import Client as DialCollector
from multiprocessing.connection import Connection as CollectorConnection
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from isthmus.connectors.servicebus.channel import Claim, private_directory

__all__ = ["TokenCollector", "hand_over_tokens"]

_HEAD = struct.Struct(">QQ")
_TOKEN_BYTES = 16


def hand_over_tokens(collector: tuple[str, bytes], lease: int, number: int, tokens: list[bytes]) -> None:
    """In the worker: gives the tokens of a lease's reader `number` to the driver, and waits until it has them."""
    address, key = collector
    with DialCollector(address, "AF_UNIX", key) as connection:
        connection.send_bytes(_HEAD.pack(lease, number) + b"".join(tokens))
        connection.recv_bytes()


class TokenCollector:
    """Takes lock tokens from the workers, for settling at commit; one thread."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self.address = str(private_directory() / f"{secrets.token_hex(16)}.tokens")
        self._tokens: dict[int, dict[int, bytes]] = {}
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
        lease, number = _HEAD.unpack_from(data)
        self._tokens.setdefault(lease, {})[number] = data[_HEAD.size :]
        connection.send_bytes(b"taken")

    def through(self, lease: int) -> list[bytes]:
        """The tokens of leases up to `lease`; they are forgotten here."""
        found = [self._tokens.pop(each) for each in sorted(self._tokens) if each <= lease]
        joined = b"".join(tokens for readers in found for tokens in readers.values())
        return [joined[at : at + _TOKEN_BYTES] for at in range(0, len(joined), _TOKEN_BYTES)]

    def close(self) -> None:
        """Closes the socket."""
        self._listener.close()
        self._claim.discard()
