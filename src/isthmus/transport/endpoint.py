"""The address of a namespace and how to connect to it.

What it is: host, port, TLS, WebSocket or not, and credential of one namespace as a client needs them. What it is not: a
connection string; the connector parses those.

Invariants:
    I1. Link addresses and audiences carry the authority as the connection string gave it, port included
        (docs/explanation/protocol.md, Connection strings).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from isthmus.transport.credential import Credential, NoCredential

__all__ = ["AZURE_PATH", "Endpoint", "Login"]

# Where Service Bus serves AMQP over WebSocket (Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide").
AZURE_PATH = "/$servicebus/websocket"


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """The client's SASL mechanism and response (OASIS AMQP 1.0 5.3.3).

    Attributes:
        mechanism: `ANONYMOUS`, `PLAIN`, `EXTERNAL`; empty: no SASL layer.
        response: the initial response.
    """

    mechanism: str = "ANONYMOUS"
    response: bytes | None = None

    @classmethod
    def plain(cls, user: str, password: str) -> Login:
        """User and password (RFC 4616)."""
        return cls("PLAIN", b"\0" + user.encode() + b"\0" + password.encode())

    def __repr__(self) -> str:
        return f"<Login {self.mechanism}>"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One namespace.

    Attributes:
        host: host name or address to connect to.
        port: TCP port.
        tls: whether to speak TLS.
        authority: host and, where the connection string has one, port; empty: `host`.
        credential: makes the tokens to show.
        ca_file: certificates to trust besides the system's; empty: none.
        websocket: whether AMQP is sent over a WebSocket; with `tls` over wss, otherwise ws.
        websocket_path: of the WebSocket's URL.
        login: the SASL credential; Service Bus accepts ANONYMOUS there, and asks for tokens.
        virtual_host: what `open` asks for; empty: `host`.
        certificate_file: of this client, for TLS; empty: none.
        key_file: its key; empty: it is in `certificate_file`.
        key_password: of the key; empty: none.
    """

    host: str
    port: int
    tls: bool = True
    authority: str = ""
    credential: Credential = field(default_factory=NoCredential)
    ca_file: str = ""
    websocket: bool = False
    websocket_path: str = AZURE_PATH
    login: Login = field(default_factory=Login)
    virtual_host: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)

    def audience(self, path: str) -> str:
        """The audience of a token for the entity at `path`."""
        return f"sb://{self.authority or self.host}/{path.strip('/')}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings, or None for plain TCP.

        Raises:
            OSError: a file cannot be read.
        """
        if not self.tls:
            return None
        context = ssl.create_default_context()
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None, self.key_password or None)
        return context
