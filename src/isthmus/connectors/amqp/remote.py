"""The opening of a connection to a broker from options, in the process that uses it.

What it is: the parsed address, resolved secrets, and the termini of links. What it is not: a pool; connections are shared by
`isthmus.connectors.servicebus.port.pool`.
Specification: OASIS AMQP 1.0, 2.4.1 and 5.3 (open, SASL), 3.5.3 and 3.5.4 (source, target).

Invariants:
    I1. A secret is resolved here, used here, and kept in no object that is pickled.
    I2. No password is sent unencrypted to another machine, unless the operator named that host.
"""

from __future__ import annotations

import os
from functools import partial

from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Symbol, UInt
from isthmus.connectors.amqp.container import Containers
from isthmus.connectors.amqp.option import BrokerOptions, SourceOptions, TargetOptions
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.plain_host import ALLOWED_VARIABLE, PlainConnectionError, check_plain
from isthmus.connectors.servicebus.port.connection import Remote
from isthmus.connectors.servicebus.port.dialer import OPEN_SECONDS
from isthmus.errors import UnauthorizedError
from isthmus.topology.kind.amqp import URL
from isthmus.transport import Client, Endpoint, LinkTerms, Login

__all__ = ["can_browse", "can_drain", "endpoint_of", "open_client", "remote_of", "receiver_terms", "sender_terms"]

_PORTS = {"amqp": 5672, "amqps": 5671, "ws": 80, "wss": 443}
# OASIS AMQP 1.0, 3.5.5 and 3.5.6: terminus durability, and expiry policy.
_UNSETTLED_STATE, _NEVER = UInt(2), Symbol("never")


def endpoint_of(options: BrokerOptions) -> Endpoint:
    """The endpoint of the options; resolves secrets, and may block for that.

    Raises:
        SecretError: a reference cannot be resolved.
        UnauthorizedError: a password would be sent unencrypted to another machine.
    """
    found = URL.fullmatch(options.url)
    assert found is not None  # amqp_faults has checked it
    scheme, host = found["scheme"], found["host"].strip("[]")
    is_secure = scheme in ("amqps", "wss")
    mechanism = options.sasl
    if mechanism == "auto":
        mechanism = "plain" if options.username else "external" if options.certificate_file else "anonymous"
    if mechanism == "plain" and not is_secure:
        try:
            check_plain(host)
        except PlainConnectionError:
            raise UnauthorizedError(
                f"{options.url}: without TLS the password could be read on the network; write amqps://, or name the host in "
                f"{ALLOWED_VARIABLE} where isthmus runs"
            ) from None
    if mechanism == "plain":
        login = Login.plain(options.username, resolve(options.password).reveal())
    elif mechanism == "external":
        login = Login("EXTERNAL", b"")
    else:
        login = Login("" if mechanism == "none" else "ANONYMOUS")
    return Endpoint(
        host,
        int(found["port"] or _PORTS[scheme]),
        tls=is_secure,
        ca_file=options.ca_file,
        websocket=scheme in ("ws", "wss"),
        websocket_path=found["path"] or "/",
        login=login,
        virtual_host=options.virtual_host,
        certificate_file=options.certificate_file,
        key_file=options.key_file,
        key_password=resolve(options.key_password).reveal() if options.key_password else "",
    )


def open_client(options: BrokerOptions, name: str, *, sole: bool = False) -> Client:
    """An open connection; blocks.

    Args:
        options: the broker, and how to connect.
        name: container id.
        sole: whether the broker should refuse it while it has another connection of this container.

    Raises:
        IsthmusError: a reference cannot be resolved, or no connection could be made.
    """
    return Client(endpoint_of(options), name=name, shared=True, sole=sole).open(OPEN_SECONDS)


def remote_of(options: SourceOptions | TargetOptions, containers: Containers | None = None) -> Remote:
    """The broker of an end. A durable subscription belongs to a container, whichever process reads it.

    Args:
        options: of the end.
        containers: for an end that must not read over two connections at once.
    """
    name = f"isthmus-bridge-{os.getpid()}"
    if isinstance(options, SourceOptions) and options.subscription:
        name, containers = options.container_id, None
    connection_key = (
        options.url,
        options.sasl,
        options.username,
        options.password,
        options.virtual_host,
        options.ca_file,
        options.certificate_file,
        options.key_file,
        options.key_password,
        name,
        containers is not None,
    )
    if containers is None:
        return Remote(connection_key, partial(open_client, options, name))
    return Remote(
        connection_key, partial(containers.open, connection_key, name, partial(open_client, options, sole=True))
    )


def receiver_terms(options: SourceOptions, *, drains: bool = True) -> LinkTerms:
    """The terms of a source's link; `drains`: whether the broker can drain a link."""
    capabilities = _capabilities(options.entity_type)
    if not options.subscription:
        return LinkTerms(source=Source(options.entity, capabilities=capabilities), drains=drains)
    source = Source(options.entity, _UNSETTLED_STATE, _NEVER, capabilities=capabilities)
    return LinkTerms(name=options.subscription, source=source, closes=False, drains=drains)


def can_drain(client: Client) -> bool:
    """Whether a broker can drain a link: RabbitMQ 3 ends the session of one from a classic queue with an internal error."""
    properties = client.peer_properties
    return not (properties.get("product") == "RabbitMQ" and str(properties.get("version", "")).startswith("3."))


def can_browse(client: Client) -> bool:
    """Whether a broker leaves the messages of a link of distribution mode `copy` in the queue; RabbitMQ grants the mode, and removes them."""
    return client.peer_properties.get("product") != "RabbitMQ"


def sender_terms(entity: str, entity_type: str) -> LinkTerms:
    """The terms of a target's link."""
    return LinkTerms(target=Target(entity, capabilities=_capabilities(entity_type)))


def _capabilities(entity_type: str) -> list[str] | None:
    return None if entity_type == "any" else [Symbol(entity_type)]
