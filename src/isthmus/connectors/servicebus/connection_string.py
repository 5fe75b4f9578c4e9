"""Service Bus connection strings.

What it is: the parsing of `Endpoint=…;SharedAccessKeyName=…;SharedAccessKey=…;EntityPath=…;UseDevelopmentEmulator=true`
into typed parts (docs/explanation/protocol.md, Connection strings). What it is not: a resolver; the text comes from `isthmus.connectors.secret`.

Invariants:
    I1. Keys are case-insensitive; values are unchanged, with every "=" but the first.
    I2. No repr and no error contains a key or a signature.
    I3. The emulator flag has effect only as exactly ``true`` and means plain AMQP; without it the data port uses TLS. With it
        and a host that is not this machine a warning is logged; whether to connect is decided by `plain_host`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlsplit

from isthmus.connectors.secret import Secret
from isthmus.connectors.servicebus.plain_host import is_loopback
from isthmus.errors import IsthmusError

__all__ = [
    "AMQPS_PORT",
    "AMQP_PORT",
    "EMULATOR_HTTP_PORT",
    "WEBSOCKET_PORT",
    "ConnectionString",
    "ConnectionStringError",
]

_log = logging.getLogger(__name__)

AMQP_PORT = 5672
EMULATOR_HTTP_PORT = 5300
"""The administration port of the emulator, and of `isthmus namespace serve`."""
AMQPS_PORT = 5671
WEBSOCKET_PORT = 443
_TRANSPORT_TYPES = {"": False, "amqp": False, "amqpwebsockets": True}

_KEYS = {
    "endpoint",
    "hostname",
    "sharedaccesskeyname",
    "sharedaccesskey",
    "sharedaccesssignature",
    "entitypath",
    "usedevelopmentemulator",
    "transporttype",
}


class ConnectionStringError(IsthmusError):
    """A connection string lacks a part or has one too many; the text never contains its values."""

    code = "bad-connection-string"

    def __init__(self, reason: str = "") -> None:
        super().__init__("", reason=reason)

    def text(self) -> str:
        return (
            f"connection string: {self.attributes.get('reason')}; "
            "write Endpoint=sb://HOST/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"
        )


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """The parts of a connection string.

    Attributes:
        host: host name without port.
        port: the port in Endpoint, or None.
        key_name: the shared access policy's name; empty with a signature.
        key: the policy's key, or None with a signature.
        signature: a ready token (`SharedAccessSignature sr=…`), or None with a key.
        entity_path: the entity the string is limited to; empty for the whole namespace.
        development_emulator: plain AMQP instead of TLS.
        websocket: AMQP over WebSocket (`TransportType=AmqpWebSockets`, as .NET writes it).
        text: the same parts as SDKs write them, for those that parse a string themselves, and more strictly.
    """

    host: str
    port: int | None
    key_name: str
    key: Secret | None
    signature: Secret | None
    entity_path: str
    development_emulator: bool
    text: Secret
    websocket: bool = False

    @classmethod
    def parse(cls, text: str | Secret) -> ConnectionString:
        """Parses a connection string.

        Raises:
            ConnectionStringError: a part is missing, doubled or malformed.
        """
        raw = text.reveal() if isinstance(text, Secret) else text
        parts = _parts(raw)
        host, port = _endpoint(parts.get("endpoint") or parts.get("hostname") or "")
        key_name, key, signature = (
            parts.get(name, "") for name in ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
        )
        if bool(key_name) != bool(key):
            raise ConnectionStringError("SharedAccessKeyName and SharedAccessKey go together")
        if bool(key) == bool(signature):
            raise ConnectionStringError("exactly one of SharedAccessKey and SharedAccessSignature is needed")
        transport = parts.get("transporttype", "").lower()
        if transport not in _TRANSPORT_TYPES:
            raise ConnectionStringError("TransportType is neither Amqp nor AmqpWebSockets")
        emulator = parts.get("usedevelopmentemulator") == "true"
        if emulator and not is_loopback(host):
            _log.warning("connection string without TLS to another machine, its tokens can be read: host=%s", host)
        entity_path = parts.get("entitypath", "").strip("/")
        return cls(
            host=host,
            port=port,
            key_name=key_name,
            key=Secret(key) if key else None,
            signature=Secret(signature) if signature else None,
            entity_path=entity_path,
            development_emulator=emulator,
            text=Secret(
                f"Endpoint=sb://{_authority(host, port)}/;"
                + (
                    f"SharedAccessKeyName={key_name};SharedAccessKey={key}"
                    if key
                    else f"SharedAccessSignature={signature}"
                )
                + (f";EntityPath={entity_path}" if entity_path else "")
                + (";UseDevelopmentEmulator=true" if emulator else "")
            ),
            websocket=_TRANSPORT_TYPES[transport],
        )

    def with_port(self, port: int) -> ConnectionString:
        """The same connection string with another port."""
        old, new = (f"Endpoint=sb://{_authority(self.host, each)}/" for each in (self.port, port))
        return self.parse(self.text.reveal().replace(old, new, 1))

    @property
    def authority(self) -> str:
        """`host` or `host:port`, as link addresses, token audiences and the administration client use it."""
        return _authority(self.host, self.port)

    @property
    def tls(self) -> bool:
        """Whether the data port uses TLS."""
        return not self.development_emulator

    @property
    def data_port(self) -> int:
        """The AMQP port: the one in Endpoint, else AMQP's own, with or without TLS."""
        return self.port or (AMQPS_PORT if self.tls else AMQP_PORT)

    def audience(self, path: str = "") -> str:
        """The resource in a token for an entity, e.g. `sb://host/flights`."""
        return f"sb://{self.authority}/{path.strip('/')}"


def _authority(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def _parts(raw: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for item in raw.strip().split(";"):
        if not item.strip():
            continue
        name, equals, value = item.partition("=")
        key = name.strip().lower()
        if not equals:
            raise ConnectionStringError("a part between semicolons has no '='")
        if key not in _KEYS:
            continue
        if key in parts:
            raise ConnectionStringError(f"{name.strip()} appears twice")
        parts[key] = value.strip()
    if not parts:
        raise ConnectionStringError("it is empty or malformed")
    return parts


def _endpoint(endpoint: str) -> tuple[str, int | None]:
    if not endpoint:
        raise ConnectionStringError("Endpoint is missing")
    try:
        split = urlsplit(endpoint if "://" in endpoint else f"sb://{endpoint}")
        host, port = split.hostname, split.port
    except ValueError:
        raise ConnectionStringError("Endpoint is malformed") from None
    if not host:
        raise ConnectionStringError("Endpoint has no host")
    return host, port
