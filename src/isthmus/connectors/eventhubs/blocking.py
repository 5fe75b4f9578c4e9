"""Blocking calls to a namespace, for the driver's queries and administration.

What it is: one connection, the namespace's descriptions of its event hubs, and its administration over HTTPS. What it is not: the port (`source`,
`target`).
Specification: Microsoft Learn, "Azure Event Hubs AMQP request/response operations"; Azure REST, Event Hubs, "Create event hub" and "Create
consumer group".

Invariants:
    I1. No error text contains a key or a token.
"""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Self
from urllib.parse import quote
from xml.sax.saxutils import escape

from isthmus.connectors.checkpoint.checkpoint import GroupKey
from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery, PartitionView
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.connectors.secret import scrub
from isthmus.connectors.servicebus.connect import endpoint_of
from isthmus.connectors.servicebus.plain_host import is_loopback
from isthmus.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    IsthmusError,
    NotAllowedError,
    OperationTimeoutError,
    UnauthorizedError,
)
from isthmus.transport import Client, Endpoint

__all__ = ["BlockingHubs"]

QUERY_SECONDS = 20.0
_SCHEMA = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_API_VERSION = "2014-01"
_TEXT_CHARACTERS = 300
# The code of a conflict with a running operation, in the vendor's list of errors; other codes mean that the entity exists.
_BUSY = "SubCode=40901"


class BlockingHubs:
    """A connection to a namespace, made when it is first needed.

    Args:
        options: the options that reach the namespace.
        endpoint: the same, where it is known already.

    Raises:
        SecretError: a reference cannot be resolved.
        ConnectionStringError: the text is not a connection string.
    """

    def __init__(self, options: HubOptions, endpoint: Endpoint | None = None) -> None:
        self.endpoint = endpoint or endpoint_of(options.servicebus_options)
        self._client: Client | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def client(self) -> Client:
        """The connection.

        Raises:
            IsthmusError: no connection can be made.
        """
        if self._client is not None and self._client.error is not None:
            self.close()  # a lost connection still has a socket
        if self._client is None:
            self._client = Client(self.endpoint, name="isthmus-look", shared=True).open(QUERY_SECONDS)
        return self._client

    def identity(self) -> str:
        """The namespace's identity.

        Raises:
            IsthmusError: it cannot be reached.
        """
        return self.client.namespace_id

    def group(self, hub: str, group: str) -> GroupKey:
        """The owner of a group's checkpoints.

        Raises:
            IsthmusError: the namespace cannot be reached.
        """
        return GroupKey(self.identity(), self.endpoint.host, hub, group)

    def views(self, hub: str) -> dict[int, PartitionView]:
        """The partitions of an event hub.

        Raises:
            EntityNotFoundError: the event hub does not exist.
            IsthmusError: no answer, or a refusal.
        """
        return self.query(hub).views

    def query(self, hub: str) -> HubQuery:
        """The namespace's description of an event hub; its links are closed.

        Raises:
            EntityNotFoundError: the event hub does not exist.
            IsthmusError: no answer, or a refusal.
        """
        client = self.client
        client.authorize(hub, QUERY_SECONDS)
        query = HubQuery(client, hub, lambda: None)
        try:

            def is_done() -> bool:
                query.advance()
                return query.is_done

            client.wait_until(is_done, QUERY_SECONDS, f"event hub '{hub}': no answer")
            if isinstance(query.error, EntityNotFoundError):
                raise EntityNotFoundError(hub)
            if query.error is not None:
                raise query.error
            return query
        finally:
            query.close()

    def reader(self, hub: str, group: str, partition: int, begin: Begin) -> PartitionLink:
        """A link that reads a partition concurrently with other readers; without an owner level it fences none.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        client = self.client
        link = PartitionLink(client, hub, group, partition, begin, -1, lambda: None)
        client.wait_until(
            lambda: link.attached or link.error is not None, QUERY_SECONDS, f"'{link.path}': no answer to attach"
        )
        if link.error is not None:
            raise link.error
        return link

    # ---- administration

    def create_hub(self, hub: str, partitions: int) -> None:
        """Creates an event hub; no error where it exists.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        self._put(hub, "EventHubDescription", f"<PartitionCount>{partitions}</PartitionCount>")

    def create_group(self, hub: str, group: str) -> None:
        """Creates a consumer group; no error where it exists.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        if group.lower() != "$default":
            self._put(f"{hub}/consumergroups/{group}", "ConsumerGroupDescription", "")

    def _put(self, path: str, kind: str, inside: str) -> None:
        endpoint = self.endpoint
        address = f"{endpoint.authority or endpoint.host}/{quote(path)}"
        token = endpoint.credential.token(f"https://{address}", time.time())
        body = (
            f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns="{escape(_SCHEMA)}">'
            f"{inside}</{kind}></content></entry>"
        )
        request = urllib.request.Request(
            f"https://{address}?api-version={_API_VERSION}",
            body.encode(),
            {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"},
            method="PUT",
        )
        if token is not None:
            text = token.text if token.text.startswith("SharedAccessSignature") else f"Bearer {token.text}"
            request.add_header("Authorization", text)
        handlers: list[Any] = [urllib.request.HTTPSHandler(context=_context(endpoint))]
        if is_loopback(endpoint.host):
            handlers.append(urllib.request.ProxyHandler({}))  # no proxy reaches this machine
        opener = urllib.request.build_opener(*handlers)
        try:
            opener.open(request, timeout=QUERY_SECONDS).close()
        except urllib.error.HTTPError as error:
            with error:
                answer = _text_of(error)
            refused = _refusal(path, error.code, answer)
            if refused is not None:
                raise refused from None
        except TimeoutError:
            raise OperationTimeoutError(f"{endpoint.host}: '{path}': no answer within {QUERY_SECONDS:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionLostError(f"{endpoint.host}: {getattr(error, 'reason', None) or error}") from None


def _context(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if endpoint.ca_file:
        try:
            context.load_verify_locations(endpoint.ca_file)
        except OSError as error:  # also of ssl, where the file contains no certificate
            raise ConnectionLostError(
                f"{endpoint.host}: ca_file {endpoint.ca_file} cannot be read: {error.strerror or error}"
            ) from None
    return context


def _text_of(error: urllib.error.HTTPError) -> str:
    """The text of an answer; its connection may be lost within it, and the status suffices."""
    try:
        return scrub(error.read(4096).decode("utf-8", "replace"))[:_TEXT_CHARACTERS]
    except (OSError, http.client.HTTPException):
        return str(error.reason)


def _refusal(path: str, status: int, answer: str) -> IsthmusError | None:
    """The error of an answer with an error status; None: the entity exists already."""
    text = f"'{path}': HTTP {status}: {answer}"
    if status == 409 and _BUSY not in answer:
        return None
    if status in (401, 403):
        return UnauthorizedError(f"{text}; creating event hubs and consumer groups needs the Manage right")
    if status == 404:
        return EntityNotFoundError(path)
    if status in (409, 429) or status >= 500:
        return ConnectionLostError(text)
    return NotAllowedError(text)
