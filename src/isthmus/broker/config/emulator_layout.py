"""The layouts of the vendor's emulators, in JSON: names are values of "Name" in lists.

What it is: the reader of ``UserConfig.Namespaces[]`` (queues, topics) and ``UserConfig.NamespaceConfig[]`` (event hubs).
What it is not: isthmus's own layout (`own_layout`), nor what both share (`config_reader`).
Spec: the emulators' Config-schema.json.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from isthmus.broker.config.layout import Layout
from isthmus.broker.config.reader import AnyDescription, NamespaceConfig, Pairs, Reader, SubscriptionConfig, TopicConfig
from isthmus.entities.catalog.description import (
    Filter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.hub import EventHubDescription
from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Spec

__all__ = ["EmulatorReader"]


class EmulatorReader(Reader):
    """Reads the emulators' layouts.

    Args:
        document: the file, and the faults found.
    """

    def __init__(self, document: Document) -> None:
        super().__init__(document, Layout(emulator=True))

    def read(self, root: yaml.Node) -> NamespaceConfig:
        """What the file says; its faults are the document's."""
        known = ("Namespaces", "Logging", "NamespaceConfig", "LoggingConfig")
        user = self.pairs(self.pairs(root, "the file", ("UserConfig",))["UserConfig"][1], "UserConfig", known)
        if "NamespaceConfig" in user:
            return self._event_hubs(root, user)
        namespaces = self.sequence(user, "Namespaces", "UserConfig")
        if len(namespaces) != 1:
            self.fault(
                root, f"UserConfig has {len(namespaces)} namespaces", "write one; each namespace is served by itself"
            )
        config = NamespaceConfig()
        for node in namespaces[:1]:
            pairs = self.pairs(node, "the namespace", ("Name", "Queues", "Topics"))
            config.name = self.text(pairs["Name"][1], "Name") if "Name" in pairs else ""
            for name, inner in self._items(pairs, "Queues", Kind.ENTITY, ("Properties",)):
                config.queues[name] = self._properties(QueueDescription, self.queue, inner, f"queue {name}")
            for name, inner in self._items(pairs, "Topics", Kind.ENTITY, ("Properties", "Subscriptions")):
                topic = TopicConfig(self._properties(TopicDescription, self.topic, inner, f"topic {name}"))
                config.topics[name] = topic
                for sub, each in self._items(inner, "Subscriptions", Kind.SUBSCRIPTION, ("Properties", "Rules")):
                    topic.subscriptions[sub] = self._subscription(each, f"subscription {name}/{sub}")
        return config

    def _event_hubs(self, root: yaml.Node, user: Pairs) -> NamespaceConfig:
        """The layout of the vendor's other emulator, which has event hubs."""
        config = NamespaceConfig()
        found = [
            self.pairs(node, "an item of NamespaceConfig", ("Type", "Name", "Entities"))
            for node in self.sequence(user, "NamespaceConfig", "UserConfig")
        ]
        if len(found) != 1:
            self.fault(root, f"NamespaceConfig has {len(found)} items", "write one; each namespace is served by itself")
        for pairs in found[:1]:
            config.name = self.text(pairs["Name"][1], "Name") if "Name" in pairs else ""
            if "Type" in pairs and self.text(pairs["Type"][1], "Type") != "EventHub":
                self.fault(pairs["Type"][1], "the Type of a NamespaceConfig is not EventHub", 'write "EventHub"')
            settings = tuple(setting.name for setting in self.event_hub.settings)
            for node in self.sequence(pairs, "Entities", "Entities"):
                inner = self.pairs(node, "an item of Entities", ("Name", "ConsumerGroups", *settings))
                name = self.text(inner["Name"][1], "Name") if "Name" in inner else ""
                self.check_name(node, name, "Entities", Kind.ENTITY, set())
                what = f"event hub {name}"
                hub = self.description(EventHubDescription, self.event_hub, node, what, "Name", "ConsumerGroups")
                groups = self._items(inner, "ConsumerGroups", Kind.SUBSCRIPTION, ("Properties",))
                hub.consumer_groups = [group for group, _ in groups]
                config.event_hubs[name] = hub
        return config

    def _subscription(self, pairs: Pairs, what: str) -> SubscriptionConfig:
        config = SubscriptionConfig(self._properties(SubscriptionDescription, self.subscription, pairs, what))
        for name, inner in self._items(pairs, "Rules", Kind.SUBSCRIPTION, ("Properties",)):
            rule = f"rule {name} of {what}"
            node = inner["Properties"][1] if "Properties" in inner else None
            known = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
            properties = self.pairs(node, f"Properties of {rule}", known)
            kind = self.text(properties["FilterType"][1], "FilterType") if "FilterType" in properties else ""
            part = f"{kind}Filter"
            place = inner["Name"][0]
            if kind not in ("Sql", "Correlation"):
                self.fault(place, f"{rule} has no FilterType", 'write "FilterType": "Sql" or "Correlation"')
            elif part not in properties:
                self.fault(place, f"{rule} has no {part}", f'write "{part}": {{…}}')
            else:
                read = self.correlation if kind == "Correlation" else self._sql_filter
                action = self._sql_action(properties["Action"][1], rule) if "Action" in properties else None
                config.rules.append(RuleDescription(name, read(properties[part][1], f"{part} of {rule}"), action))
        return config

    def _sql_filter(self, node: yaml.Node, what: str) -> Filter:
        pairs = self.pairs(node, what, ("SqlExpression",))
        if "SqlExpression" not in pairs:
            self.fault(node, f"{what} has no SqlExpression", 'write "SqlExpression": "…"')
            return SqlFilter("1=1")
        return self.sql(pairs["SqlExpression"][1], what)

    def _sql_action(self, node: yaml.Node, rule: str) -> SqlAction | None:
        pairs = self.pairs(node, f"Action of {rule}", ("SqlExpression",))
        return self.action(pairs["SqlExpression"][1], f"Action of {rule}") if "SqlExpression" in pairs else None

    def _properties(self, kind: type[AnyDescription], spec: Spec, pairs: Pairs, what: str) -> AnyDescription:
        return self.description(kind, spec, pairs["Properties"][1] if "Properties" in pairs else None, what)

    def _items(self, pairs: Pairs, name: str, kind: Kind, known: tuple[str, ...]) -> Iterator[tuple[str, Pairs]]:
        """Names and pairs of a list's items, each with a "Name"."""
        seen: set[str] = set()
        for node in self.sequence(pairs, name, name):
            inner = self.pairs(node, f"an item of {name}", ("Name", *known))
            if "Name" not in inner:
                self.fault(node, f"an item of {name} has no Name", 'write "Name": "…"')
                continue
            value = inner["Name"][1]
            text = self.text(value, "Name")
            self.check_name(value, text, name, kind, seen)
            yield text, inner
