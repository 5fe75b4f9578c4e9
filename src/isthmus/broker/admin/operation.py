"""The operations of the administration API, without HTTP.

What it is: get, list, create, update and delete over the engine, from parsed requests to documents. What it is not:
authentication, sockets, or durability: the answer to a change is sent after the commit that covers it (`app`).
Spec: docs/explanation/protocol.md, Administration.

Invariants:
    I1. An update replaces the whole description: omitted settings take their defaults. A value that is sent back as it was
        shown stays unchanged.
    I2. A request that is refused has changed nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from isthmus.broker.admin import atom
from isthmus.broker.admin.address import Address, Resource
from isthmus.broker.admin.description import AnyDescription, read_description, write_description
from isthmus.broker.admin.document import Node, element, read, text_element
from isthmus.broker.admin.event_hub import EventHubOperations
from isthmus.broker.admin.failure import MethodError
from isthmus.broker.admin.filter import Listed, parse_filter
from isthmus.broker.admin.hybrid_connection import HybridConnectionOperations
from isthmus.broker.admin.request import Answer, Request, check_etag, page, status_of
from isthmus.broker.admin.rule import read_rule, write_rule
from isthmus.clock import Clock
from isthmus.entities import Engine
from isthmus.entities.catalog.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.errors import EntityNotFoundError, InvalidArgumentError

__all__ = ["Operations"]

_T = TypeVar("_T")
_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)


class Operations:
    """The operations on one engine.

    Args:
        engine: the entities.
        clock: for feeds' times.
        namespace: the namespace's name.
        message_size_limit_bytes: the namespace's limit, shown for entities without one of their own.
        listeners: how many listeners a hybrid connection has.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        namespace: str,
        message_size_limit_bytes: int,
        listeners: Callable[[str], int] = lambda name: 0,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._namespace = namespace
        self._message_size_limit_bytes = message_size_limit_bytes
        self._started_ms = clock.wall_ms()
        self._instance = secrets.token_hex(8)  # catalog versions count from each start
        self._hubs = EventHubOperations(engine.hubs, clock, namespace)
        self._hybrids = HybridConnectionOperations(engine.hybrid_connections, clock, namespace, listeners)

    def get(self, request: Request) -> Answer:
        """One entity or one page of a list; an unknown queue or topic gives an empty feed, as the service does.

        Raises:
            EntityNotFoundError: an unknown subscription or rule; for these the service answers with a status, and the Java
                client cannot read a feed instead.
        """
        at = request.address
        if (hubs := self._hubs.get(request)) is not None:
            return hubs
        if (hybrids := self._hybrids.get(request)) is not None:
            return hybrids
        match at.resource:
            case Resource.NAMESPACE:
                return self._namespace_info(request)
            case Resource.QUEUES:
                queues = self._listed(request, self._engine.list_queues())
                return page(request, self._clock.wall_ms(), "Queues", queues, lambda e: self._entity(request, *e))
            case Resource.TOPICS:
                topics = self._listed(request, self._engine.list_topics())
                return page(request, self._clock.wall_ms(), "Topics", topics, lambda e: self._entity(request, *e))
            case Resource.SUBSCRIPTIONS:
                topic = self._engine.canonical_name(at.entity)
                subscriptions = self._listed(request, self._engine.list_subscriptions(topic), f"{topic}/Subscriptions/")
                return page(
                    request,
                    self._clock.wall_ms(),
                    "Subscriptions",
                    subscriptions,
                    lambda e: self._subscription(request, topic, *e),
                )
            case Resource.RULES:
                if request.filter:
                    raise InvalidArgumentError("Rules are listed without a $filter.")
                rules = self._engine.list_rules(at.entity, at.subscription)
                return page(request, self._clock.wall_ms(), "Rules", rules, lambda rule: self._rule(request, rule))
            case Resource.ENTITY:
                found = self._engine.get_queue(at.entity) or self._engine.get_topic(at.entity)
                if found is not None:
                    return self._entity(request, self._engine.canonical_name(at.entity), found)
            case Resource.SUBSCRIPTION:
                subscription = self._engine.get_subscription(at.entity, at.subscription)
                if subscription is not None:
                    topic, name = self._subscription_names(at)
                    return self._subscription(request, topic, name, subscription)
            case Resource.RULE:
                rule = self._engine.get_rule(at.entity, at.subscription, at.rule)
                if rule is not None:
                    return self._rule(request, rule)
        if at.resource in (Resource.SUBSCRIPTION, Resource.RULE):
            raise EntityNotFoundError(at.path)
        return Answer(200, atom.empty_feed(request.url, updated_ms=self._clock.wall_ms()), "feed")

    def put(self, request: Request) -> Answer:
        """Create an entity, or with If-Match replace its description.

        Raises:
            IsthmusError: the request is refused; nothing has changed.
        """
        node = atom.content_of(read(request.body))
        match request.address.resource, node.name:
            case (Resource.ENTITY, "EventHubDescription") | (Resource.CONSUMER_GROUP, "ConsumerGroupDescription"):
                return self._hubs.put(request, node)
            case Resource.ENTITY, "HybridConnectionDescription":
                return self._hybrids.put(request, node)
            case Resource.ENTITY, "QueueDescription":
                return self._put_queue(request, node)
            case Resource.ENTITY, "TopicDescription":
                return self._put_topic(request, node)
            case Resource.SUBSCRIPTION, "SubscriptionDescription":
                return self._put_subscription(request, node)
            case Resource.RULE, "RuleDescription":
                return self._put_rule(request, node)
            case Resource.ENTITY | Resource.SUBSCRIPTION | Resource.RULE | Resource.CONSUMER_GROUP, name:
                raise InvalidArgumentError(f"A {name[:64]} does not belong at '/{request.address.path}'.")
        raise MethodError("PUT")

    def delete(self, request: Request) -> Answer:
        """Removes an entity with its messages.

        Raises:
            EntityNotFoundError: it does not exist.
        """
        at = request.address
        if self._hubs.delete(request) or self._hybrids.delete(request):
            return Answer(200)
        if request.if_match is not None and at.resource in (Resource.ENTITY, Resource.SUBSCRIPTION):
            self._check_etag(request.if_match, at.path)
        match at.resource:
            case Resource.ENTITY if self._engine.get_topic(at.entity) is not None:
                self._engine.delete_topic(at.entity)
            case Resource.ENTITY:
                self._engine.delete_queue(at.entity)
            case Resource.SUBSCRIPTION:
                self._engine.delete_subscription(at.entity, at.subscription)
            case Resource.RULE:
                self._engine.delete_rule(at.entity, at.subscription, at.rule)
            case _:
                raise MethodError("DELETE")
        return Answer(200)

    def _put_queue(self, request: Request, node: Node) -> Answer:
        name = request.address.entity
        current = self._current(request, self._engine.get_queue(name), name)
        wanted = self._read(request, node, QueueDescription, current)
        put = self._engine.create_queue if request.if_match is None else self._engine.update_queue
        stored = put(name, wanted)
        return self._entity(request, self._engine.canonical_name(name), stored, changed=True)

    def _put_topic(self, request: Request, node: Node) -> Answer:
        name = request.address.entity
        current = self._current(request, self._engine.get_topic(name), name)
        wanted = self._read(request, node, TopicDescription, current)
        put = self._engine.create_topic if request.if_match is None else self._engine.update_topic
        stored = put(name, wanted)
        return self._entity(request, self._engine.canonical_name(name), stored, changed=True)

    def _put_subscription(self, request: Request, node: Node) -> Answer:
        at = request.address
        found = self._engine.get_subscription(at.entity, at.subscription)
        current = self._current(request, found, at.path)
        wanted = self._read(request, node, SubscriptionDescription, current)
        if request.if_match is None:
            rule_node = node.find("DefaultRuleDescription")
            rule = read_rule(rule_node, created_at_ms=self._clock.wall_ms()) if rule_node is not None else None
            stored = self._engine.create_subscription(at.entity, at.subscription, wanted, rule)
        else:
            stored = self._engine.update_subscription(at.entity, at.subscription, wanted)
        topic, name = self._subscription_names(at)
        return self._subscription(request, topic, name, stored, changed=True)

    def _put_rule(self, request: Request, node: Node) -> Answer:
        at = request.address
        current = self._engine.get_rule(at.entity, at.subscription, at.rule)
        if request.if_match is None:
            rule = read_rule(node, at.rule, created_at_ms=self._clock.wall_ms())
            return self._rule(request, self._engine.create_rule(at.entity, at.subscription, rule), changed=True)
        if current is None:
            raise EntityNotFoundError(at.path)
        rule = read_rule(node, current.name, created_at_ms=current.created_at_ms)
        return self._rule(request, self._engine.update_rule(at.entity, at.subscription, rule), changed=True)

    def _read(self, request: Request, node: Node, kind: type[_D], current: _D | None) -> _D:
        """The description asked for, its forwarding targets checked."""
        wanted = read_description(
            node, kind, current=current, api_version=request.api_version, now_ms=self._clock.wall_ms()
        )
        for setting in ("forward_to", "forward_dead_lettered_messages_to"):
            if target := getattr(wanted, setting, None):
                request.check_forward(target, setting)
        # Clients send back what they read: the limit that is shown for an entity without one of its own.
        size, shown = "max_message_size_in_kilobytes", self._message_size_limit_bytes // 1024
        if current is not None and getattr(current, size, 0) is None and getattr(wanted, size) == shown:
            setattr(wanted, size, None)
        return wanted

    def _current(self, request: Request, found: _T | None, path: str) -> _T | None:
        """The description that an update replaces; None for a creation."""
        if request.if_match is None:
            return None
        if found is None:
            raise EntityNotFoundError(path)
        self._check_etag(request.if_match, path)
        return found

    def _check_etag(self, if_match: str, path: str) -> None:
        """Refuses a change of an entity that has changed since the client read it."""
        check_etag(if_match, self._engine.runtime(path).updated_at_ms)

    def _listed(self, request: Request, items: list[tuple[str, _D]], parent: str = "") -> list[tuple[str, _D]]:
        """The entities that the request's filter selects."""
        if not request.filter:
            return items
        selects = parse_filter(request.filter)
        return [item for item in items if selects(self._look(item[0], parent + item[0]))]

    def _look(self, name: str, path: str) -> Listed:
        runtime = self._engine.runtime(path)
        return Listed(name, runtime.message_count, runtime.created_at_ms, runtime.updated_at_ms, runtime.accessed_at_ms)

    def _subscription_names(self, at: Address) -> tuple[str, str]:
        """Topic and subscription as they were spelt when created."""
        topic = self._engine.canonical_name(at.entity)
        return topic, self._engine.canonical_name(at.path).rpartition("/")[2]

    def _entity(
        self, request: Request, name: str, found: QueueDescription | TopicDescription, *, changed: bool = False
    ) -> Answer:
        return self._described(request, name, name, found, author=self._namespace, changed=changed)

    def _subscription(
        self, request: Request, topic: str, name: str, found: SubscriptionDescription, *, changed: bool = False
    ) -> Answer:
        return self._described(request, f"{topic}/Subscriptions/{name}", name, found, author="", changed=changed)

    def _described(
        self, request: Request, path: str, title: str, found: AnyDescription, *, author: str, changed: bool
    ) -> Answer:
        runtime = self._engine.runtime(path)
        content = write_description(
            found,
            runtime,
            host=request.host,
            api_version=request.api_version,
            message_size_limit_bytes=self._message_size_limit_bytes,
        )
        body = atom.entry(
            request.origin,
            path,
            title,
            content,
            published_ms=runtime.created_at_ms,
            updated_ms=runtime.updated_at_ms,
            author=author,
        )
        return Answer(status_of(request, changed), body, updated_at_ms=runtime.updated_at_ms)

    def _rule(self, request: Request, rule: RuleDescription, *, changed: bool = False) -> Answer:
        topic, subscription = self._subscription_names(
            Address(Resource.SUBSCRIPTION, request.address.entity, request.address.subscription)
        )
        body = atom.entry(
            request.origin,
            f"{topic}/Subscriptions/{subscription}/Rules/{rule.name}",
            rule.name,
            write_rule(rule),
            published_ms=rule.created_at_ms,
            updated_ms=rule.created_at_ms,
        )
        return Answer(status_of(request, changed), body)

    def _namespace_info(self, request: Request) -> Answer:
        tier = self._engine.limits.tier
        title = "Premium" if tier is None else tier.title
        content = element(
            "NamespaceInfo",
            text_element("CreatedTime", atom.format_time(self._started_ms))
            + text_element("MessagingSKU", title)
            + (text_element("MessagingUnits", "1") if title == "Premium" else "")
            + text_element("ModifiedTime", atom.format_time(self._started_ms))
            + text_element("Name", self._namespace)
            + text_element("NamespaceType", "Messaging"),
            {"xmlns": atom.SERVICE_BUS},
        )
        body = atom.entry(
            request.origin,
            request.address.path,
            self._namespace,
            content,
            published_ms=self._started_ms,
            updated_ms=self._started_ms,
            author=self._namespace,
        )
        version = f"{self._instance}-{self._engine.catalog_version}"
        return Answer(200, body, catalog_version=version, instance=self._instance)
