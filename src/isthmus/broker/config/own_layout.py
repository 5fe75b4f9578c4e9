"""isthmus's own layout of a namespace's file, in YAML: names are keys.

What it is: the reader of that layout. What it is not: the emulator's (`emulator_layout`), nor what both share
(`config_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from isthmus.broker.config.credential import read_authorization_rules, read_jwt
from isthmus.broker.config.layout import Layout
from isthmus.broker.config.limit import LIMITS, limit_spec, make_limits
from isthmus.broker.config.reader import NamespaceConfig, Pairs, Reader, SubscriptionConfig, TopicConfig
from isthmus.entities.catalog.description import (
    Filter,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.tier import TIERS, Tier
from isthmus.entities.hub import EventHubDescription
from isthmus.entities.hybrid_connection import HybridConnectionDescription
from isthmus.store.zone import COPIES
from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind

__all__ = ["OwnReader"]

_RULES = "authorization_rules"
_KEYS = ("namespace", "tier", "zones", "limits", _RULES, "jwt", "queues", "topics", "event_hubs", "hybrid_connections")


class OwnReader(Reader):
    """Reads isthmus's own layout.

    Args:
        document: the file, and the faults found.
    """

    def __init__(self, document: Document) -> None:
        super().__init__(document, Layout(emulator=False))

    def read(self, root: yaml.Node) -> NamespaceConfig:
        """What the file says; its faults are the document's."""
        pairs = self.pairs(root, "the file", _KEYS)
        config = NamespaceConfig(name=self.text(pairs["namespace"][1], "namespace") if "namespace" in pairs else "")
        if "jwt" in pairs:
            config.jwt = read_jwt(self.document, pairs["jwt"][1], Path(self.document.file).parent)
        config.zones = self._zones(pairs)
        self._authorization(config, pairs, "")
        tier = self._tier(pairs["tier"][1]) if "tier" in pairs else None
        if "limits" in pairs or tier is not None:
            self._limits(config, self.mapping(pairs["limits"][1]) if "limits" in pairs else None, tier)
        for name, _, node in self._named(pairs, "queues", Kind.ENTITY):
            what = f"queue {name}"
            config.queues[name] = self.description(QueueDescription, self.queue, node, what, _RULES)
            self._authorization(config, self.document.pairs(self.mapping(node), what), name)
        for name, _, node in self._named(pairs, "topics", Kind.ENTITY):
            config.topics[name] = topic = TopicConfig()
            what = f"topic {name}"
            inner = self.document.pairs(self.mapping(node), what)
            topic.description = self.description(TopicDescription, self.topic, node, what, "subscriptions", _RULES)
            self._authorization(config, inner, name)
            for sub, _, sub_node in self._named(inner, "subscriptions", Kind.SUBSCRIPTION):
                topic.subscriptions[sub] = self._subscription(sub_node, f"subscription {name}/{sub}")
        for name, _, node in self._named(pairs, "event_hubs", Kind.ENTITY):
            what = f"event hub {name}"
            hub = self.description(EventHubDescription, self.event_hub, node, what, "consumer_groups", _RULES)
            inner = self.document.pairs(self.mapping(node), what)
            self._authorization(config, inner, name)
            hub.consumer_groups = [group for group, _, _ in self._named(inner, "consumer_groups", Kind.SUBSCRIPTION)]
            config.event_hubs[name] = hub
        for name, _, node in self._named(pairs, "hybrid_connections", Kind.ENTITY):
            what = f"hybrid connection {name}"
            described = self.description(HybridConnectionDescription, self.hybrid_connection, node, what, _RULES)
            self._authorization(config, self.document.pairs(self.mapping(node), what), name)
            config.hybrid_connections[name] = described
        return config

    def _authorization(self, config: NamespaceConfig, pairs: Pairs, path: str) -> None:
        if _RULES in pairs:
            node = pairs[_RULES][1]
            what = path or "the namespace"
            config.authorization_rules[path] = read_authorization_rules(self.document, node, what)

    def _zones(self, pairs: Pairs) -> tuple[Path, ...]:
        """Folders, relative ones to the file's."""
        nodes = self.sequence(pairs, "zones", "the file")
        folders = tuple(Path(self.document.file).parent / self.text(node, "a zone") for node in nodes)
        if "zones" in pairs and (len(folders) != COPIES or len(set(folders)) != COPIES):
            self.fault(
                pairs["zones"][0], f"there are {len(set(folders))} zones", f"write {COPIES} folders, each another"
            )
        return folders

    def _tier(self, node: yaml.Node) -> Tier | None:
        name = self.text(node, "tier")
        if name and name not in TIERS:
            self.fault(node, f"there is no tier {name!r}", f"write one of {', '.join(TIERS)}")
        return TIERS.get(name)

    def _limits(self, config: NamespaceConfig, node: yaml.Node | None, tier: Tier | None) -> None:
        values = self.document.settings(node, limit_spec(), "limits")
        written = {name: values[name] for name in LIMITS if values.written(name) and name not in values.faulty}
        config.limits, config.connection_limits = make_limits(written, tier)
        self.use(config.limits)

    def _subscription(self, node: yaml.Node | None, what: str) -> SubscriptionConfig:
        description = self.description(SubscriptionDescription, self.subscription, node, what, "rules")
        config = SubscriptionConfig(description)
        inner = self.document.pairs(self.mapping(node), what)
        for name, key, rule_node in self._named(inner, "rules", Kind.SUBSCRIPTION):
            rule = f"rule {name} of {what}"
            pairs = self.pairs(rule_node, rule, ("filter", "correlation", "action"))
            filters: list[Filter] = []
            if "filter" in pairs:
                filters.append(self.sql(pairs["filter"][1], f"filter of {rule}"))
            if "correlation" in pairs:
                filters.append(self.correlation(pairs["correlation"][1], f"correlation of {rule}"))
            if len(filters) != 1:
                self.fault(
                    key, f"{rule} has {len(filters)} filters", 'write filter: "a = 1" or correlation: {label: a}'
                )
            action = self.action(pairs["action"][1], f"action of {rule}") if "action" in pairs else None
            config.rules += [RuleDescription(name, each, action) for each in filters[:1]]
        return config

    def _named(self, pairs: Pairs, name: str, kind: Kind) -> Iterator[tuple[str, yaml.Node, yaml.Node | None]]:
        """Names, their nodes and their values' nodes of a mapping or a list of names inside, each name checked."""
        node = self.mapping(pairs[name][1]) if name in pairs else None
        if isinstance(node, yaml.SequenceNode):
            items: list[tuple[str, tuple[yaml.Node, yaml.Node | None]]] = [
                (self.text(item, name), (item, None)) for item in node.value
            ]
        else:
            items = list(self.document.pairs(node, name).items())
        seen: set[str] = set()
        for each, (key, value) in items:
            self.check_name(key, each, name, kind, seen)
            yield each, key, self.mapping(value)
