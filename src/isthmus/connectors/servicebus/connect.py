"""From options to an open connection, in the process that uses it.

What it is: resolves the reference to a connection string, or takes an identity, and opens an authorized client. What it
is not: a cache; connections live as long as the reader or sink that opened them.

Invariants:
    I1. A secret is resolved here, used here, and kept in no object that is pickled.
"""

from __future__ import annotations

from isthmus.connectors.identity import shared_credential
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.connection_string import AMQPS_PORT, WEBSOCKET_PORT, ConnectionString
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.plain_host import check_plain
from isthmus.transport import Client, Credential, Endpoint, IdentityCredential, SharedKeyCredential, SignatureCredential

__all__ = ["endpoint_of", "endpoint_of_string", "open_client"]


def endpoint_of(options: SourceOptions | SinkOptions) -> Endpoint:
    """Where the options point to.

    Raises:
        SecretError: the reference leads nowhere.
        ConnectionStringError: what it leads to is no connection string.
        PlainConnectionError: it would go in the clear to another machine.
        InvalidArgumentError: the identity is none that is known.
    """
    websocket = options.transport_type == "websockets"
    if options.connection:
        parsed = ConnectionString.parse(resolve(options.connection))
        return endpoint_of_string(parsed, options.ca_file, websocket=websocket)
    host, _, port = options.host.partition(":")
    return Endpoint(
        host,
        int(port) if port else WEBSOCKET_PORT if websocket else AMQPS_PORT,
        authority=options.host,
        credential=IdentityCredential(shared_credential(options.identity)),
        ca_file=options.ca_file,
        websocket=websocket,
    )


def endpoint_of_string(parsed: ConnectionString, ca_file: str = "", *, websocket: bool = False) -> Endpoint:
    """Where a connection string points to.

    Args:
        parsed: the connection string.
        ca_file: certificates to trust beside the system's.
        websocket: whether to go over WebSocket though the string does not say so.

    Raises:
        PlainConnectionError: it would go in the clear to another machine.
    """
    if not parsed.tls:
        check_plain(parsed.host)
    over_websocket = websocket or parsed.websocket
    credential: Credential
    if parsed.key is not None:
        credential = SharedKeyCredential(parsed.key_name, parsed.key.reveal())
    else:
        assert parsed.signature is not None
        credential = SignatureCredential(parsed.signature.reveal())
    return Endpoint(
        parsed.host,
        (parsed.port or WEBSOCKET_PORT) if over_websocket else parsed.data_port,
        tls=parsed.tls,
        authority=parsed.authority,
        credential=credential,
        ca_file=ca_file,
        websocket=over_websocket,
    )


def open_client(endpoint: Endpoint, path: str, name: str, timeout_seconds: float = 30.0) -> Client:
    """An open connection, authorized for `path`.

    Raises:
        IsthmusError: no connection, or no right.
    """
    client = Client(endpoint, name=name).open(timeout_seconds)
    try:
        client.authorize(path, timeout_seconds)
    except BaseException:
        client.abandon()
        raise
    return client
