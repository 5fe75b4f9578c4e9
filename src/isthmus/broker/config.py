"""The entities that a namespace starts with, read from a file.

What it is: two layouts read into the same descriptions: isthmus's own YAML and the JSON of the vendor's emulator
(``UserConfig.Namespaces[].Queues/Topics/...``), every fault collected with its place. What it is not: the making of the
entities (`provision`), keys, or ports.
Spec: SERVICE-BUS.md W13 for the settings; the emulator's Config-schema.json for its layout. A setting that is left out
takes the service's default in both layouts, not the emulator's narrower one: no message expires after an hour unasked.

Invariants:
    I1. A file that has a fault yields no entities, only the faults, all of them.
    I2. Nothing in a file is ignored: an unknown key is a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from isthmus.broker.credential import read_authorization_rules, read_jwt
from isthmus.broker.jwt_setting import JwtSettings
from isthmus.broker.layout import CORRELATION_FIELDS, SETTINGS, Layout, field_of
from isthmus.broker.limit import LIMITS, ConnectionLimits, limit_spec, make_limits
from isthmus.entities import Limits
from isthmus.entities.description import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    Filter,
    Parameter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.hub import DEFAULT_CONSUMER_GROUP, EventHubDescription
from isthmus.errors import ConfigError, Fault
from isthmus.rules import RuleSyntaxError, parse_action, parse_filter
from isthmus.topology.document import Document
from isthmus.topology.setting import Kind, Setting, SettingError, Spec

__all__ = ["NamespaceConfig", "SubscriptionConfig", "TopicConfig", "load_config", "read_config"]

_RULES = "authorization_rules"
_OWN_KEYS = ("namespace", "limits", _RULES, "jwt", "queues", "topics", "event_hubs")
_D = TypeVar("_D", bound=QueueDescription | TopicDescription | SubscriptionDescription | EventHubDescription)


@dataclass(slots=True)
class SubscriptionConfig:
    """A subscription and its rules; without rules it gets the one that selects everything."""

    description: SubscriptionDescription = field(default_factory=SubscriptionDescription)
    rules: list[RuleDescription] = field(default_factory=list)


@dataclass(slots=True)
class TopicConfig:
    """A topic and its subscriptions by name."""

    description: TopicDescription = field(default_factory=TopicDescription)
    subscriptions: dict[str, SubscriptionConfig] = field(default_factory=dict)


@dataclass(slots=True)
class NamespaceConfig:
    """What a file says of a namespace.

    Attributes:
        name: the namespace's name, "" where the file gives none.
        queues: by name.
        topics: by name.
        event_hubs: by name.
        limits: of entities.
        connection_limits: of connections and links.
        authorization_rules: by path of the entity, "" for the namespace; what is not in it keeps the rules it has.
        jwt: who issues web tokens; None takes none.
    """

    name: str = ""
    queues: dict[str, QueueDescription] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    event_hubs: dict[str, EventHubDescription] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    authorization_rules: dict[str, list[AuthorizationRule]] = field(default_factory=dict)
    jwt: JwtSettings | None = None


def load_config(path: Path) -> NamespaceConfig:
    """Read a file.

    Raises:
        ConfigError: with every fault found.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError([Fault(f"the file cannot be read: {reason}", file=str(path))]) from None
    return read_config(text, str(path))


def read_config(text: str, file: str) -> NamespaceConfig:
    """Read either layout; a file with the key ``UserConfig`` is in the emulator's.

    Args:
        text: the file's content.
        file: its name, for faults.

    Raises:
        ConfigError: with every fault found.
    """
    document = Document(file)
    config = NamespaceConfig()
    root = _compose(text, document)
    if root is not None:
        emulator = isinstance(root, yaml.MappingNode) and any(key.value == "UserConfig" for key, _ in root.value)
        reader = _Reader(document, Layout(emulator))
        config = reader.emulator_file(root) if emulator else reader.own_file(root)
    if document.faults:
        raise document.error()
    return config


def _compose(text: str, document: Document) -> yaml.Node | None:
    # JSON may be indented by tabs, which YAML forbids; inside JSON's strings a tab cannot stand.
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        document.faults.append(
            Fault(f"neither YAML nor JSON: {error.problem or error.context}", "", document.file, *place)
        )
        return None
    except (yaml.YAMLError, RecursionError, ValueError):
        document.faults.append(Fault("neither YAML nor JSON", "save the file as plain UTF-8 text", document.file, 1, 1))
        return None
    if root is None:
        document.faults.append(Fault("the file is empty", "write queues: {orders: {}}", document.file, 1, 1))
    return root


class _Reader:
    """Walks a file's nodes."""

    def __init__(self, document: Document, layout: Layout) -> None:
        self.document = document
        self.word = layout.word
        self._entities: set[str] = set()
        self._layout = layout
        self._use(Limits())

    def _use(self, limits: Limits) -> None:
        """Read settings of entities within these limits."""
        self.queue = self._layout.spec(QueueDescription, "queue", limits)
        self.topic = self._layout.spec(TopicDescription, "topic", limits)
        self.subscription = self._layout.spec(SubscriptionDescription, "subscription", limits)
        self.event_hub = self._layout.spec(EventHubDescription, "event hub", limits)

    # isthmus's own layout: names are keys.

    def own_file(self, root: yaml.Node) -> NamespaceConfig:
        pairs = self._pairs(root, "the file", _OWN_KEYS)
        config = NamespaceConfig(name=self._text(pairs["namespace"][1], "namespace") if "namespace" in pairs else "")
        if "jwt" in pairs:
            config.jwt = read_jwt(self.document, pairs["jwt"][1], Path(self.document.file).parent)
        self._authorization(config, pairs, "")
        if "limits" in pairs:
            self._limits(config, self._mapping(pairs["limits"][1]))
        for name, _, node in self._named(pairs, "queues", Kind.ENTITY):
            what = f"queue {name}"
            config.queues[name] = self._description(QueueDescription, self.queue, node, what, _RULES)
            self._authorization(config, self.document.pairs(self._mapping(node), what), name)
        for name, _, node in self._named(pairs, "topics", Kind.ENTITY):
            config.topics[name] = topic = TopicConfig()
            what = f"topic {name}"
            inner = self.document.pairs(self._mapping(node), what)
            topic.description = self._description(TopicDescription, self.topic, node, what, "subscriptions", _RULES)
            self._authorization(config, inner, name)
            for sub, _, sub_node in self._named(inner, "subscriptions", Kind.SUBSCRIPTION):
                topic.subscriptions[sub] = self._own_subscription(sub_node, f"subscription {name}/{sub}")
        for name, _, node in self._named(pairs, "event_hubs", Kind.ENTITY):
            what = f"event hub {name}"
            hub = self._description(EventHubDescription, self.event_hub, node, what, "consumer_groups", _RULES)
            inner = self.document.pairs(self._mapping(node), what)
            self._authorization(config, inner, name)
            hub.consumer_groups = [group for group, _, _ in self._named(inner, "consumer_groups", Kind.SUBSCRIPTION)]
            config.event_hubs[name] = hub
        return config

    def _authorization(self, config: NamespaceConfig, pairs: dict[str, tuple[Any, Any]], path: str) -> None:
        if _RULES in pairs:
            node = pairs[_RULES][1]
            what = path or "the namespace"
            config.authorization_rules[path] = read_authorization_rules(self.document, node, what)

    def _limits(self, config: NamespaceConfig, node: yaml.Node | None) -> None:
        values = self.document.settings(node, limit_spec(), "limits")
        written = {name: values[name] for name in LIMITS if values.written(name) and name not in values.faulty}
        config.limits, config.connection_limits = make_limits(written)
        self._use(config.limits)

    def _own_subscription(self, node: yaml.Node | None, what: str) -> SubscriptionConfig:
        description = self._description(SubscriptionDescription, self.subscription, node, what, "rules")
        config = SubscriptionConfig(description)
        inner = self.document.pairs(self._mapping(node), what)
        for name, key, rule_node in self._named(inner, "rules", Kind.SUBSCRIPTION):
            rule = f"rule {name} of {what}"
            pairs = self._pairs(rule_node, rule, ("filter", "correlation", "action"))
            filters: list[Filter] = []
            if "filter" in pairs:
                filters.append(self._sql(pairs["filter"][1], f"filter of {rule}"))
            if "correlation" in pairs:
                filters.append(self._correlation(pairs["correlation"][1], f"correlation of {rule}"))
            if len(filters) != 1:
                self._fault(
                    key, f"{rule} has {len(filters)} filters", 'write filter: "a = 1" or correlation: {label: a}'
                )
            action = self._action(pairs["action"][1], f"action of {rule}") if "action" in pairs else None
            config.rules += [RuleDescription(name, each, action) for each in filters[:1]]
        return config

    # The emulator's layout: names are values of "Name" in lists.

    def emulator_file(self, root: yaml.Node) -> NamespaceConfig:
        known = ("Namespaces", "Logging", "NamespaceConfig", "LoggingConfig")
        user = self._pairs(self._pairs(root, "the file", ("UserConfig",))["UserConfig"][1], "UserConfig", known)
        if "NamespaceConfig" in user:
            return self._event_hubs_emulator(root, user)
        namespaces = self._list(user, "Namespaces", "UserConfig")
        if len(namespaces) != 1:
            self._fault(
                root, f"UserConfig has {len(namespaces)} namespaces", "write one; each namespace is served by itself"
            )
        config = NamespaceConfig()
        for node in namespaces[:1]:
            pairs = self._pairs(node, "the namespace", ("Name", "Queues", "Topics"))
            config.name = self._text(pairs["Name"][1], "Name") if "Name" in pairs else ""
            for name, inner in self._items(pairs, "Queues", Kind.ENTITY, ("Properties",)):
                config.queues[name] = self._properties(QueueDescription, self.queue, inner, f"queue {name}")
            for name, inner in self._items(pairs, "Topics", Kind.ENTITY, ("Properties", "Subscriptions")):
                topic = TopicConfig(self._properties(TopicDescription, self.topic, inner, f"topic {name}"))
                config.topics[name] = topic
                for sub, each in self._items(inner, "Subscriptions", Kind.SUBSCRIPTION, ("Properties", "Rules")):
                    topic.subscriptions[sub] = self._emulator_subscription(each, f"subscription {name}/{sub}")
        return config

    def _event_hubs_emulator(self, root: yaml.Node, user: dict[str, tuple[Any, Any]]) -> NamespaceConfig:
        """The layout of the vendor's other emulator, which has event hubs."""
        config = NamespaceConfig()
        found = [
            self._pairs(node, "an item of NamespaceConfig", ("Type", "Name", "Entities"))
            for node in self._list(user, "NamespaceConfig", "UserConfig")
        ]
        if len(found) != 1:
            self._fault(
                root, f"NamespaceConfig has {len(found)} items", "write one; each namespace is served by itself"
            )
        for pairs in found[:1]:
            config.name = self._text(pairs["Name"][1], "Name") if "Name" in pairs else ""
            if "Type" in pairs and self._text(pairs["Type"][1], "Type") != "EventHub":
                self._fault(pairs["Type"][1], "the Type of a NamespaceConfig is not EventHub", 'write "EventHub"')
            settings = tuple(setting.name for setting in self.event_hub.settings)
            for node in self._list(pairs, "Entities", "Entities"):
                inner = self._pairs(node, "an item of Entities", ("Name", "ConsumerGroups", *settings))
                name = self._text(inner["Name"][1], "Name") if "Name" in inner else ""
                self._check_name(node, name, "Entities", Kind.ENTITY, set())
                what = f"event hub {name}"
                hub = self._description(EventHubDescription, self.event_hub, node, what, "Name", "ConsumerGroups")
                groups = self._items(inner, "ConsumerGroups", Kind.SUBSCRIPTION, ("Properties",))
                hub.consumer_groups = [group for group, _ in groups]
                config.event_hubs[name] = hub
        return config

    def _emulator_subscription(self, pairs: dict[str, tuple[Any, Any]], what: str) -> SubscriptionConfig:
        config = SubscriptionConfig(self._properties(SubscriptionDescription, self.subscription, pairs, what))
        for name, inner in self._items(pairs, "Rules", Kind.SUBSCRIPTION, ("Properties",)):
            rule = f"rule {name} of {what}"
            node = inner["Properties"][1] if "Properties" in inner else None
            known = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")
            properties = self._pairs(node, f"Properties of {rule}", known)
            kind = self._text(properties["FilterType"][1], "FilterType") if "FilterType" in properties else ""
            part = f"{kind}Filter"
            place = inner["Name"][0]
            if kind not in ("Sql", "Correlation"):
                self._fault(place, f"{rule} has no FilterType", 'write "FilterType": "Sql" or "Correlation"')
            elif part not in properties:
                self._fault(place, f"{rule} has no {part}", f'write "{part}": {{…}}')
            else:
                read = self._correlation if kind == "Correlation" else self._emulator_sql
                action = self._emulator_action(properties["Action"][1], rule) if "Action" in properties else None
                config.rules.append(RuleDescription(name, read(properties[part][1], f"{part} of {rule}"), action))
        return config

    def _emulator_sql(self, node: yaml.Node, what: str) -> Filter:
        pairs = self._pairs(node, what, ("SqlExpression",))
        if "SqlExpression" not in pairs:
            self._fault(node, f"{what} has no SqlExpression", 'write "SqlExpression": "…"')
            return SqlFilter("1=1")
        return self._sql(pairs["SqlExpression"][1], what)

    def _emulator_action(self, node: yaml.Node, rule: str) -> SqlAction | None:
        pairs = self._pairs(node, f"Action of {rule}", ("SqlExpression",))
        return self._action(pairs["SqlExpression"][1], f"Action of {rule}") if "SqlExpression" in pairs else None

    # What both say.

    def _properties(self, kind: type[_D], spec: Spec, pairs: dict[str, tuple[Any, Any]], what: str) -> _D:
        return self._description(kind, spec, pairs["Properties"][1] if "Properties" in pairs else None, what)

    def _description(self, kind: type[_D], spec: Spec, node: yaml.Node | None, what: str, *others: str) -> _D:
        """A description from a mapping of settings; `others` are keys that are read elsewhere."""
        node = self._mapping(node)
        pairs = self.document.pairs(node, what) if node is not None else {}
        # The emulator's files write "ForwardTo": "" for none.
        empty = [key for key, (_, value) in pairs.items() if key.lower().startswith("forward") and value.value == ""]
        ignored = frozenset((*others, *empty))
        values = self.document.settings(node, spec, what, ignore=ignored)
        fields = {
            field_of(setting): values[self.word(name)]
            for name, setting in SETTINGS.items()
            if values.written(self.word(name)) and self.word(name) not in values.faulty
        }
        if "status" in fields:
            fields["status"] = EntityStatus(fields["status"])
        return kind(**fields)

    def _sql(self, node: yaml.Node, what: str) -> Filter:
        expression = self._text(node, what)
        self._check(lambda: parse_filter(expression), node, what)
        return SqlFilter(expression)

    def _action(self, node: yaml.Node, what: str) -> SqlAction | None:
        expression = self._text(node, what)
        self._check(lambda: parse_action(expression), node, what)
        return SqlAction(expression) if expression else None

    def _check(self, parse: Any, node: yaml.Node, what: str) -> None:
        try:
            parse()
        except RuleSyntaxError as error:
            for fault in error.faults:
                self._fault(node, f"{what}: column {fault.column}: {fault.message}", fault.hint)

    def _correlation(self, node: yaml.Node, what: str) -> Filter:
        words = {self.word(name): name for name in CORRELATION_FIELDS}
        properties = self.word("properties")
        pairs = self._pairs(node, what, (*words, properties))
        values: dict[str, Any] = {words[w]: self._text(pairs[w][1], w) for w in words if w in pairs}
        if properties in pairs:
            inner = self.document.pairs(pairs[properties][1], f"{properties} of {what}")
            values["properties"] = {name: self._value(value, name) for name, (_, value) in inner.items()}
        if not values and isinstance(node, yaml.MappingNode):
            self._fault(node, f"{what} is empty", "write at least one field that messages must have")
        return CorrelationFilter(**values)

    def _value(self, node: yaml.Node, what: str) -> Parameter:
        """A property's value by its YAML type: text, whole number, decimal number, true or false."""
        if isinstance(node, yaml.ScalarNode):
            value = yaml.SafeLoader("").construct_object(node)
            if isinstance(value, str | bool | int | float):
                return value
            if value is not None:
                return str(node.value)
        self._fault(node, f"{what} is not a text, number, true or false", "")
        return ""

    # Nodes.

    def _fault(self, node: yaml.Node, message: str, hint: str) -> None:
        self.document.fault(self.document.place(node), message, hint)

    def _pairs(self, node: yaml.Node | None, what: str, known: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
        """A mapping's pairs, with a fault for each key that is not known."""
        pairs = self.document.pairs(node, what)
        for name, (key, _) in pairs.items():
            if name not in known:
                self._fault(key, f"{what} has no setting {name!r}", f"write one of {', '.join(known)}")
        return pairs

    @staticmethod
    def _mapping(node: yaml.Node | None) -> yaml.Node | None:
        """The node, or None for nothing after the colon."""
        return None if node is None or Document.is_empty(node) else node

    def _named(
        self, pairs: dict[str, tuple[Any, Any]], name: str, kind: Kind
    ) -> Iterator[tuple[str, yaml.Node, yaml.Node | None]]:
        """Names, their nodes and their values' nodes of a mapping or a list of names inside, each name checked."""
        node = self._mapping(pairs[name][1]) if name in pairs else None
        if isinstance(node, yaml.SequenceNode):
            items: list[tuple[str, tuple[Any, Any]]] = [(self._text(item, name), (item, None)) for item in node.value]
        else:
            items = list(self.document.pairs(node, name).items())
        seen: set[str] = set()
        for each, (key, value) in items:
            self._check_name(key, each, name, kind, seen)
            yield each, key, self._mapping(value)

    def _items(
        self, pairs: dict[str, tuple[Any, Any]], name: str, kind: Kind, known: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, tuple[Any, Any]]]]:
        """Names and pairs of a list's items, each with a "Name"."""
        seen: set[str] = set()
        for node in self._list(pairs, name, name):
            inner = self._pairs(node, f"an item of {name}", ("Name", *known))
            if "Name" not in inner:
                self._fault(node, f"an item of {name} has no Name", 'write "Name": "…"')
                continue
            value = inner["Name"][1]
            text = self._text(value, "Name")
            self._check_name(value, text, name, kind, seen)
            yield text, inner

    def _list(self, pairs: dict[str, tuple[Any, Any]], name: str, what: str) -> list[yaml.Node]:
        if name not in pairs:
            return []
        node = pairs[name][1]
        if not isinstance(node, yaml.SequenceNode):
            self._fault(node, f"{name} is not a list", f'write "{name}": […]')
            return []
        return list(node.value)

    def _check_name(self, node: yaml.Node, name: str, what: str, kind: Kind, seen: set[str]) -> None:
        # Queues and topics share one set of names; case tells none apart.
        taken = self._entities if kind is Kind.ENTITY else seen
        if name.lower() in taken:
            self._fault(node, f"{name} in {what} is there already", "rename or remove one; case makes no difference")
        taken.add(name.lower())
        # Rules and consumer groups may be called $Default, which no entity may.
        if name in (DEFAULT_RULE_NAME, DEFAULT_CONSUMER_GROUP) and what.lower() in (
            "rules",
            "consumer_groups",
            "consumergroups",
        ):
            return
        try:
            Setting(name=what, kind=kind, description="").parse(name)
        except SettingError as wrong:
            self._fault(node, f"{wrong.message}: {name[:64]!r}", wrong.hint)

    def _text(self, node: yaml.Node, what: str) -> str:
        if isinstance(node, yaml.ScalarNode) and not Document.is_empty(node):
            return str(node.value)
        self._fault(node, f"{what} takes one value", "")
        return ""
