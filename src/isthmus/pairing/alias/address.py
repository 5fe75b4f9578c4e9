"""The addresses of a pair's members, for its alias.

What it is: host and port of each member by its declaration, and the refusal of members that an alias cannot forward to. What it is not: which member
is active (`isthmus.pairing.state.state`).
Spec: docs/adr/0025-alias-by-forwarding.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import InvalidArgumentError
from isthmus.topology.model import Federation
from isthmus.topology.pair.declaration import Pair, address_of

__all__ = ["addresses_of"]

_CLOUD = (".servicebus.windows.net", ".servicebus.chinacloudapi.cn", ".servicebus.usgovcloudapi.net")


def addresses_of(federation: Federation, pair: Pair) -> Mapping[str, tuple[str, int]]:
    """Host and port of each member.

    Args:
        federation: that declares them.
        pair: one of its pairs, with an alias.

    Raises:
        InvalidArgumentError: a member cannot be behind an alias.
        SecretError, ConnectionStringError: its connection cannot be resolved.
    """
    found = {}
    for alias in pair.members:
        namespace = federation.namespaces[alias]
        host, port, is_plain = namespace.host, 5671, False
        if namespace.connection is not None:
            parsed = ConnectionString.parse(resolve(namespace.connection))
            host, port, is_plain = parsed.host, parsed.data_port, not parsed.tls
        elif ":" in host:
            host, port = address_of(host)
        if host.lower().endswith(_CLOUD):
            raise InvalidArgumentError(
                f"pair '{pair.name}': {alias} is at {host}, which takes only tokens and TLS for its own name, not for "
                "an alias; remove listen:, and see 'Members in Azure' in docs/how-to/recover-from-a-disaster.md"
            )
        if is_plain and not _is_loopback(address_of(pair.listen)[0]):
            raise InvalidArgumentError(
                f"pair '{pair.name}': {alias} is reached without TLS, and listen: {pair.listen} would let other "
                "machines use it without TLS; listen on 127.0.0.1, or write a connection with TLS"
            )
        found[alias] = host, port
    return found


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")
