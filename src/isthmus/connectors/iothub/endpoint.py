"""The endpoint of an IoT hub, and the endpoint of its device-to-cloud messages.

What it is: the tokens of an IoT hub, and the redirect from it to its Event Hubs-compatible endpoint. Calls block. What it is not: a
source.
Specification: Microsoft Learn, "Communicate with your IoT hub by using the AMQP protocol" (service client) and "Read device-to-cloud
messages from the built-in endpoint"; OASIS AMQP 1.0, 2.8.16 (`amqp:link:redirect`).

Invariants:
    I1. A redirect leads from TLS to TLS; without TLS only to this machine, for tests.
    I2. No error contains the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.connection_string import (
    AMQP_PORT,
    AMQPS_PORT,
    WEBSOCKET_PORT,
    ConnectionString,
    ConnectionStringError,
)
from isthmus.connectors.servicebus.plain_host import check_plain
from isthmus.connectors.servicebus.port.credential import RereadCredential
from isthmus.errors import ProtocolError
from isthmus.transport import Client, Credential, Endpoint, SharedKeyCredential, Token
from isthmus.transport.error import LinkRedirectError

__all__ = ["EventsEndpoint", "IotEndpoint", "events_endpoint", "hub_endpoint"]

OPEN_SECONDS = 20.0
_TOKEN_SECONDS = 3600.0
_TOKEN_KIND = "azure-devices.net:sastoken"
_EVENTS = "messages/events"


class IotEndpoint(Endpoint):
    """An IoT hub: audiences are paths below its host name, without a scheme."""

    def audience(self, path: str) -> str:
        """The audience of a token for `path`."""
        return f"{self.host}/{path.strip('/')}"


class IotCredential:
    """A policy of an IoT hub. Unlike in Service Bus its key is base64-encoded bytes.

    Args:
        host: name of the hub.
        name: of the policy.
        key: its key.

    Raises:
        ConnectionStringError: the key is not base64.
    """

    def __init__(self, host: str, name: str, key: str) -> None:
        self._host, self._name = host, name
        try:
            self._key = base64.b64decode(key, validate=True)
        except (binascii.Error, ValueError):
            raise ConnectionStringError("the SharedAccessKey of an IoT hub is base64, and this one is not") from None

    def __repr__(self) -> str:
        return "<IotCredential>"

    def token(self, audience: str, now: float) -> Token:
        """A token for the whole hub, for any audience."""
        expires_at = int(now + _TOKEN_SECONDS)
        resource = quote(self._host, safe="")
        signature = hmac.new(self._key, f"{resource}\n{expires_at}".encode(), hashlib.sha256).digest()
        sig = quote(base64.b64encode(signature).decode(), safe="")
        text = f"SharedAccessSignature sr={resource}&sig={sig}&se={expires_at}&skn={quote(self._name, safe='')}"
        return Token(text, _TOKEN_KIND, float(expires_at))


class EventsEndpoint(NamedTuple):
    """The Event Hubs-compatible endpoint of an IoT hub, and the name of the event hub there."""

    endpoint: Endpoint
    hub: str


def hub_endpoint(options: HubOptions) -> IotEndpoint:
    """The endpoint of an IoT hub.

    Raises:
        SecretError: the reference cannot be resolved.
        ConnectionStringError: the text is not a connection string of an IoT hub.
        PlainConnectionError: the connection to another machine would not be encrypted.
    """
    parsed = _parsed(options)
    websocket = parsed.websocket or options.transport_type == "websockets"
    port = parsed.port or (WEBSOCKET_PORT if websocket else AMQPS_PORT if parsed.tls else AMQP_PORT)
    return IotEndpoint(
        parsed.host,
        port,
        tls=parsed.tls,
        authority=parsed.authority,
        credential=_reread(options, parsed, lambda now, key: IotCredential(now.host, now.key_name, key)),
        ca_file=options.ca_file,
        websocket=websocket,
    )


def events_endpoint(options: HubOptions) -> EventsEndpoint:
    """The endpoint of its device-to-cloud messages; queries the hub, which answers a link with a redirect.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    parsed = _parsed(options)
    with Client(hub_endpoint(options), name="isthmus-iothub").open(OPEN_SECONDS) as client:
        client.authorize(_EVENTS, OPEN_SECONDS)
        link = PartitionLink(client, f"/{_EVENTS}", "$Default", 0, Begin(), -1, lambda: None)
        client.wait_until(
            lambda: link.error is not None or link.attached,
            OPEN_SECONDS,
            f"IoT hub {parsed.host}: no answer to the link to {_EVENTS}",
        )
        error = link.error
        if error is None:  # a refusal follows the answer
            client.wait_until(lambda: link.error is not None, OPEN_SECONDS, f"IoT hub {parsed.host}: no redirect")
            error = link.error
    if not isinstance(error, LinkRedirectError):
        raise error or ProtocolError(f"IoT hub {parsed.host}: the link to {_EVENTS} was not redirected")
    address = urlsplit(error.address)
    host = address.hostname or error.hostname
    hub = address.path.strip("/").partition("/")[0]
    if not host or not hub:
        raise ProtocolError(f"IoT hub {parsed.host}: the redirect has no event hub: {error}")
    tls = address.scheme != "amqp"
    if not tls:
        check_plain(host)
    websocket = parsed.websocket or options.transport_type == "websockets"
    port = WEBSOCKET_PORT if websocket and tls else address.port or error.port or (AMQPS_PORT if tls else AMQP_PORT)
    return EventsEndpoint(
        Endpoint(
            host,
            port,
            tls=tls,
            authority=host if port in (AMQPS_PORT, WEBSOCKET_PORT) else f"{host}:{port}",
            credential=_reread(options, parsed, lambda now, key: SharedKeyCredential(now.key_name, key)),
            ca_file=options.ca_file,
            websocket=websocket,
        ),
        hub,
    )


def _reread(
    options: HubOptions, parsed: ConnectionString, make: Callable[[ConnectionString, str], Credential]
) -> RereadCredential:
    """A credential that adopts a replaced key, but not the key of another hub."""

    def made(now: ConnectionString) -> Credential:
        assert now.key is not None
        return make(now, now.key.reveal())

    def read() -> Credential | None:
        now = _parsed(options)
        return made(now) if now.authority == parsed.authority else None

    return RereadCredential(made(parsed), read)


def _parsed(options: HubOptions) -> ConnectionString:
    parsed = ConnectionString.parse(resolve(options.connection))
    if parsed.key is None:
        raise ConnectionStringError("an IoT hub's has HostName, SharedAccessKeyName and SharedAccessKey")
    if not parsed.tls:
        check_plain(parsed.host)
    return parsed
