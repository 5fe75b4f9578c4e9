"""The opening of a connection from options, in the process that uses it.

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
    """The endpoint of the options.

    Raises:
        SecretError: the reference cannot be resolved.
        ConnectionStringError: the resolved text is not a connection string.
        PlainConnectionError: the connection to another machine would not be encrypted.
        InvalidArgumentError: the identity is unknown.
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
    """The endpoint of a connection string.

    Args:
        parsed: the connection string.
        ca_file: CA certificates to trust besides the system's.
        websocket: whether to use WebSocket even if the string does not say so.

    Raises:
        PlainConnectionError: the connection to another machine would not be encrypted.
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
        IsthmusError: no connection, or no permission.
    """
    client = Client(endpoint, name=name).open(timeout_seconds)
    try:
        client.authorize(path, timeout_seconds)
    except BaseException:
        client.abandon()
        raise
    return client
