"""Ports for servers that are killed and start again on the same port.

What it is: free ports of a range from which the system takes none for outgoing connections, and which parallel test runs can divide.
What it is not: a reservation; another user of the range may take a port while its server is down.

The range is that of the environment variable `ISTHMUS_TEST_PORTS`, e.g. `10000-14999`; by default 10000 to 32767, below
net.ipv4.ip_local_port_range as Linux sets it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import MutableMapping

__all__ = ["VARIABLE", "free_port", "free_ports", "take_share"]

VARIABLE = "ISTHMUS_TEST_PORTS"
_ALL = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """So many different ports on which nothing listens now."""
    ports, found = _range(), list[int]()
    while len(found) < count:
        port = random.choice(ports)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def free_port() -> int:
    """A port on which nothing listens now."""
    return free_ports(1)[0]


def take_share(number: int, count: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Limits this process, and those that it starts, to the share `number` (from 0) of `count` of the ports."""
    ports = _range(environment)
    size = len(ports) // count
    first = ports.start + number * size
    environment[VARIABLE] = f"{first}-{first + size - 1}"


def _range(environment: MutableMapping[str, str] = os.environ) -> range:
    text = environment.get(VARIABLE, "")
    if not text:
        return _ALL
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)
