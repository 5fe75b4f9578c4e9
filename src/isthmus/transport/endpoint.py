"""Where a namespace is reached, and how.

What it is: host, port, TLS, WebSocket or not, and credential of one namespace as a client
needs them. What it is not: a connection string;
the connector parses those.

Invariants:
    I1. Link addresses and audiences carry the authority as the connection string gave it, port included
        (docs/explanation/protocol.md, Connection strings).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from isthmus.transport.credential import Credential, NoCredential

__all__ = ["Endpoint"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One namespace.

    Attributes:
        host: host name or address to connect to.
        port: TCP port.
        tls: whether to speak TLS.
        authority: host and, where the connection string has one, port; empty: `host`.
        credential: makes the tokens to show.
        ca_file: certificates to trust beside the system's; empty: none.
        websocket: whether AMQP travels in a WebSocket; `tls` tells of which kind.
    """

    host: str
    port: int
    tls: bool = True
    authority: str = ""
    credential: Credential = field(default_factory=NoCredential)
    ca_file: str = ""
    websocket: bool = False

    def audience(self, path: str) -> str:
        """What a token for the entity at `path` names."""
        return f"sb://{self.authority or self.host}/{path.strip('/')}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings, or None for plain TCP.

        Raises:
            OSError: `ca_file` cannot be read.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        return context
