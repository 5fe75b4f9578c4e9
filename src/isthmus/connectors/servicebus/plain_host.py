"""The hosts to which a connection without TLS is allowed.

What it is: the decision whether a connection string with `UseDevelopmentEmulator=true`, which means unencrypted AMQP, may
be used: tokens, and with them access to every message, could be read on the network. What it is not: a check of routes; a host
name is judged by its text, whatever it resolves to.
Spec: Microsoft Learn, "Overview of the Azure Service Bus emulator": the flag is for a host of the same machine.

Invariants:
    I1. No connection of isthmus to a host that is not loopback is unencrypted, unless the operator named that host.
"""

from __future__ import annotations

import os

from isthmus.errors import IsthmusError
from isthmus.topology.kind.base import is_loopback

__all__ = ["ALLOWED_VARIABLE", "PlainConnectionError", "check_plain", "is_loopback", "may_be_plain"]

ALLOWED_VARIABLE = "ISTHMUS_ALLOW_PLAIN_HOSTS"


class PlainConnectionError(IsthmusError):
    """A connection would expose its tokens on the network."""

    code = "plain-connection"

    def __init__(self, host: str = "") -> None:
        super().__init__("", host=host)

    def text(self) -> str:
        host = self.attributes.get("host")
        return (
            f"connection string: UseDevelopmentEmulator=true means no TLS, and '{host}' is not this machine: tokens could "
            f"be read on the network. Remove UseDevelopmentEmulator=true (and trust the authority's certificate, "
            f"ISTHMUS_CA_FILE), or name the host in {ALLOWED_VARIABLE} (names separated by commas) where isthmus runs"
        )


def check_plain(host: str) -> None:
    """Checks that a connection to a host may be made without TLS.

    Raises:
        PlainConnectionError: it must not.
    """
    if not may_be_plain(host):
        raise PlainConnectionError(host)


def may_be_plain(host: str) -> bool:
    """Whether a connection to a host may be made without TLS: to this machine, or to a host that the operator has named."""
    allowed = {name.strip().strip("[]").lower() for name in os.environ.get(ALLOWED_VARIABLE, "").split(",")}
    return is_loopback(host) or host.lower() in allowed
