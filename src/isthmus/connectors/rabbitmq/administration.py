"""Queues, exchanges and bindings, read and created with the management plugin's HTTP API.

What it is: `isthmus.connectors.administration.Administration` for RabbitMQ. Calls block. Specification: RabbitMQ documentation, "Management
HTTP API". What it is not: the deletion of anything.

A topic is an exchange; the messages for a route are stored by a queue whose binding matches all of them: `#` at a topic
exchange, any key at a fanout exchange, no header at a headers exchange.

Invariants:
    I1. Nothing connects before the first call.
    I2. An existing entity is never changed, nor created again with other arguments.
    I3. A created queue is durable.
    I4. Without `management` nothing is created, and missing entities are reported.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import quote, urlsplit

from isthmus.connectors.administration import AdministrationError, EntitySize, NamespaceUnreachableError
from isthmus.connectors.rabbitmq.option import BrokerOptions, read_broker
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.rabbitmq.remark import DELIVERY_LIMIT, MAX_AGE, audit_remark, has_default_limit, remarks_of
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.plain_host import is_loopback
from isthmus.errors import EntityNotFoundError, IsthmusError
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.planning.finding import OWN
from isthmus.topology.state import NamespaceState, PlainState, WantedState

__all__ = ["RabbitAdministration"]

TIMEOUT_SECONDS = 15.0
# The age limit is applied when a segment is full: with small segments an audit's records are removed closer to it.
_SEGMENT_BYTES = 50_000_000
# By kind of exchange: the routing key and the arguments of a binding that matches everything.
_EVERYTHING: Mapping[str, tuple[str, dict[str, str]]] = {
    "topic": ("#", {}),
    "fanout": ("", {}),
    "headers": ("", {"x-match": "all"}),
    "x-random": ("", {}),
}
_HINTS = {
    401: "check username and password; the user needs a tag such as `management`",
    403: "the user needs the configure permission in the virtual host",
    404: "check virtual_host, and whether the plugin rabbitmq_management is enabled",
    405: "check whether management is the address of the plugin rabbitmq_management",
}


class RabbitAdministration:
    """The entities of one virtual host.

    Args:
        options: the options that reach it.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._options = options
        self._host = quote(options.virtual_host, "")
        self._broker_version: str | None = None

    @classmethod
    def open(cls, namespace: NamespaceRef) -> Self:
        """Opens an administration of a namespace.

        Raises:
            ConfigError: a setting is invalid.
        """
        return cls(read_broker(namespace.options()))

    def close(self) -> None:
        """Does nothing: no connection is kept open."""

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """The entities of the given names.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        wanted = [each for each in entities if isinstance(each, PlainState)]
        if not self._options.management:
            return self._probed(alias, wanted)
        place = urlsplit(self._options.management).netloc
        self._call("GET", f"vhosts/{self._host}")
        found = [state for each in wanted if (state := self._state(each)) is not None]
        return NamespaceState(alias=alias, endpoint=f"{place}/{self._options.virtual_host}", plain=tuple(found))

    def make(self, change: Change) -> None:
        """Creates a queue, an exchange, or a queue that is bound to one.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        if not self._options.management:
            what = "exchange" if change.kind == "topic" else "queue"
            name = change.subscription or change.topic
            raise AdministrationError(
                self._options.host,
                f"{what} '{name}' does not exist",
                "create it, or write management: URL for the namespace",
            )
        if change.kind == "queue":
            self._make_queue(change.topic)
        elif change.kind == "topic":
            body = {"type": self._options.exchange_type, "durable": True}
            self._call("PUT", f"exchanges/{self._host}/{quote(change.topic, '')}", body)
        elif change.kind == "subscription":
            kind = str(self._call("GET", f"exchanges/{self._host}/{quote(change.topic, '')}")["type"])
            if kind not in _EVERYTHING:
                raise AdministrationError(
                    self._place, f"exchange '{change.topic}' is of type {kind}, at which no binding matches everything",
                    f"bind a queue '{change.subscription}' to it with the keys of the route",
                )  # fmt: skip
            audit_ms = change.after.audit_ms if isinstance(change.after, PlainState) else None
            if audit_ms is None:
                self._make_queue(change.subscription)
            else:
                self._make_stream(change.subscription, audit_ms)
            self._bind(change.topic, change.subscription, *_EVERYTHING[kind])

    def make_stream(self, name: str) -> None:
        """Creates a stream without a limit of retention, unless it exists.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        self._make_stream(name, 0)

    def size(self, entity: str) -> EntitySize | None:
        """None: a queue has no maximum size that a route could use."""
        return None

    def messages(self, queue: str) -> int:
        """How many messages a queue has, ready or unacknowledged, as last counted; 0 where the queue does not exist.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        return int((self._queue(queue) or {}).get("messages", 0))

    def is_bound(self, exchange: str, queue: str) -> bool | None:
        """Whether a queue is bound to an exchange; None where it is not known: without `management`, and where the exchange is bound to other
        exchanges, by way of which its messages may reach the queue.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        if not self._options.management:
            return None
        bindings = self._bindings(exchange)
        if any(each.get("destination_type") == "queue" and each["destination"] == queue for each in bindings):
            return True
        return None if any(each.get("destination_type") == "exchange" for each in bindings) else False

    # ---- existing entities

    def _state(self, entity: PlainState) -> PlainState | None:
        if not entity.is_topic:
            queue = self._queue(entity.name)
            return None if queue is None else replace(entity, remarks=self._remarks(entity, queue))
        if not self._exists(f"exchanges/{self._host}/{quote(entity.name, '')}"):
            return None
        bound = {each["destination"] for each in self._bindings(entity.name) if each.get("destination_type") == "queue"}
        stand = tuple(name for name in entity.subscriptions if name in bound)
        remarks = [
            each
            for name in stand
            for each in self._remarks(
                replace(entity, name=name), self._queue(name) or {}, is_audit=name == entity.audit
            )
        ]
        remarks += [each for name in entity.subscriptions for each in self._bound_elsewhere(name, entity.name)]
        former = sorted(each for each in bound - set(entity.subscriptions) if each.startswith(OWN))
        remarks += [
            f"queue {each} is bound to exchange {entity.name}, and no task of this file reads it: it has {self.messages(each)} messages, and fills; "
            "unless another file has its task, delete it"
            for each in former
        ]
        return PlainState(name=entity.name, is_topic=True, subscriptions=stand, remarks=tuple(remarks))

    def _bindings(self, exchange: str) -> Sequence[Mapping[str, Any]]:
        """Those of an exchange to queues and to other exchanges; none where it does not exist."""
        path = f"exchanges/{self._host}/{quote(exchange, '')}/bindings/source"
        return self._call("GET", path, is_optional=True) or ()

    def _bound_elsewhere(self, queue: str, exchange: str) -> Iterator[str]:
        """Remarks about a queue that keeps messages for a route, and is still bound to an earlier exchange of its task."""
        path = f"queues/{self._host}/{quote(queue, '')}/bindings"
        sources = {str(each.get("source")) for each in self._call("GET", path, is_optional=True) or ()}
        for other in sorted(sources - {"", exchange}):
            yield (
                f"queue {queue} is bound to exchange {other} too: messages published there are moved as if they were from {exchange}; remove that "
                "binding, and let the former file move the messages in the queue, before apply"
            )

    def _queue(self, name: str) -> Mapping[str, Any] | None:
        found = self._call("GET", f"queues/{self._host}/{quote(name, '')}", is_optional=True)
        return found if isinstance(found, dict) else None

    def _remarks(self, entity: PlainState, queue: Mapping[str, Any], *, is_audit: bool = False) -> tuple[str, ...]:
        if is_audit:
            remark = audit_remark(queue, entity.audit_ms or 0)
            return (f"queue {entity.name} {remark}",) if remark else ()
        if not entity.is_read:
            return ()
        found = remarks_of(queue, self._version, is_rejected_to=self._options.dead_letter_exchange)
        return tuple(f"queue {entity.name} {each}" for each in found)

    @property
    def _version(self) -> str:
        if self._broker_version is None:
            self._broker_version = str((self._call("GET", "overview") or {}).get("rabbitmq_version", ""))
        return self._broker_version

    def _probed(self, alias: str, wanted: Sequence[PlainState]) -> NamespaceState:
        """The same over AMQP, which reports no bindings: an existing queue counts as bound."""
        found = []
        place = self._options.host
        for entity in wanted:
            existing: list[str] = []
            is_there = False
            for name in (entity.name, *entity.subscriptions):
                try:
                    with Probe(self._options) as probe:  # a missing entity closes the channel
                        place = probe.place
                        if name == entity.name and entity.is_topic:
                            probe.exchange(name)
                        else:
                            probe.queue(name)
                except EntityNotFoundError:
                    continue
                except IsthmusError as error:
                    kind = NamespaceUnreachableError if error.retryable else AdministrationError
                    raise kind(self._options.host, str(error)) from None
                if name == entity.name:
                    is_there = True
                else:
                    existing.append(name)
            if is_there:
                found.append(PlainState(name=entity.name, is_topic=entity.is_topic, subscriptions=tuple(existing)))
        return NamespaceState(alias=alias, endpoint=place, plain=tuple(found))

    # ---- calls

    def _make_queue(self, name: str) -> None:
        arguments: dict[str, Any] = {"x-queue-type": self._options.queue_type}
        if self._options.queue_type == "quorum" and has_default_limit(self._version):
            arguments[DELIVERY_LIMIT] = -1  # a message that is redelivered often is not lost
        if self._queue(name) is None:
            self._call("PUT", f"queues/{self._host}/{quote(name, '')}", {"durable": True, "arguments": arguments})

    def _make_stream(self, name: str, keeps_ms: int) -> None:
        """Creates a stream that keeps all messages, for `isthmus verify`; a segment is deleted when all of it is older than `keeps_ms`, 0: never."""
        arguments: dict[str, Any] = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": _SEGMENT_BYTES}
        if keeps_ms:
            arguments[MAX_AGE] = f"{-(-keeps_ms // 1000)}s"
        if self._queue(name) is None:
            self._call("PUT", f"queues/{self._host}/{quote(name, '')}", {"durable": True, "arguments": arguments})

    def _bind(self, exchange: str, queue: str, routing_key: str, arguments: Mapping[str, str]) -> None:
        path = f"bindings/{self._host}/e/{quote(exchange, '')}/q/{quote(queue, '')}"
        self._call("POST", path, {"routing_key": routing_key, "arguments": arguments})

    def _exists(self, path: str) -> bool:
        return self._call("GET", path, is_optional=True) is not None

    @property
    def _place(self) -> str:
        return urlsplit(self._options.management).netloc

    def _call(self, method: str, path: str, body: Any = None, *, is_optional: bool = False) -> Any:
        """The answer of a call; None where it has none, or with `is_optional` where the path does not exist."""
        options = self._options
        token = b64encode(f"{options.username}:{resolve(options.password).reveal()}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310 - the setting accepts only http and https
            f"{options.management.rstrip('/')}/api/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Basic {token}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=options.ca_file or None) if request.type == "https" else None
        handlers: list[Any] = [_NoRedirect, urllib.request.HTTPSHandler(context=context)]
        if is_loopback(urlsplit(options.management).hostname or ""):
            handlers.append(
                urllib.request.ProxyHandler({})
            )  # no proxy reaches this machine, nor may it get its password
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and is_optional:
                    return None
                reason = _reason(error.read())
            kind = NamespaceUnreachableError if error.code >= 500 else AdministrationError
            text = f"{method} {path}: {error.code} {error.reason}{f': {reason}' if reason else ''}"
            raise kind(self._place, text, _HINTS.get(error.code, "")) from None
        except (OSError, HTTPException) as error:
            text = f"the management plugin does not answer ({getattr(error, 'reason', None) or error})"
            raise NamespaceUnreachableError(self._place, text) from None
        except ValueError:
            raise AdministrationError(self._place, "the server there is not a management plugin", _HINTS[405]) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password is sent to no other address than the configured one."""

    def redirect_request(self, *_: Any) -> None:
        """Returns the redirect as the answer."""


def _reason(raw: bytes) -> str:
    try:
        found = json.loads(raw)
    except ValueError:
        return ""
    return str(found.get("reason") or "") if isinstance(found, dict) else ""
