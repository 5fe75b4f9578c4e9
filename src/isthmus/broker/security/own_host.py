"""The hosts by which clients may name this server.

What it is: the names that the operator configured, those that every machine has for itself, and the machine's own
addresses. What it is not: a name lookup; no name is resolved.

Invariants:
    I1. The answer does not depend on anything that a client says about its target host.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

__all__ = ["LOCAL_NAMES", "OwnHosts"]

# The last three are the names in the connection strings of the vendor's emulator (Microsoft Learn, "Test locally by using
# the Azure Service Bus emulator").
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1", "host.docker.internal", "servicebus-emulator", "sbemulatorns")


class OwnHosts:
    """A collection of hosts; `host in hosts` takes a port, brackets, a final dot and any case.

    Args:
        names: names and addresses besides `LOCAL_NAMES`.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_bare(name) for name in (*LOCAL_NAMES, *names)} - {""}

    def __contains__(self, host: object) -> bool:
        if not isinstance(host, str):
            return False
        bare = _bare(host)
        return bare in self._names or _is_own_address(bare)


def _bare(host: str) -> str:
    """A host without its port and brackets, lower-cased."""
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    name, _, port = text.rpartition(":")
    if name and port.isdigit() and ":" not in name:
        text = name
    return text.removesuffix(".")


def _is_own_address(text: str) -> bool:
    """Whether the machine has an address: only then can a socket be bound to it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_unspecified or address.is_multicast:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
