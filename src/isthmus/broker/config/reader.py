"""What the readers of both layouts of a namespace's file share.

What it is: the descriptions that result from a file, and a walk over nodes that collects faults: settings, expressions,
correlation filters, names. What it is not: a layout (`own_layout`, `emulator_layout`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from isthmus.broker.config.layout import CORRELATION_FIELDS, SETTINGS, Layout, field_of
from isthmus.broker.config.limit import ConnectionLimits
from isthmus.broker.security.jwt_setting import JwtSettings
from isthmus.entities import Limits
from isthmus.entities.catalog.description import (
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
from isthmus.entities.hybrid_connection import HybridConnectionDescription
from isthmus.rules import RuleSyntaxError, parse_action, parse_filter
from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec

__all__ = ["AnyDescription", "NamespaceConfig", "Pairs", "Reader", "SubscriptionConfig", "TopicConfig"]

Pairs = dict[str, tuple[Any, Any]]
AnyDescription = TypeVar(
    "AnyDescription",
    bound=QueueDescription
    | TopicDescription
    | SubscriptionDescription
    | EventHubDescription
    | HybridConnectionDescription,
)


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
    """The contents of a namespace's file.

    Attributes:
        name: the namespace's name, "" where the file gives none.
        queues: by name.
        topics: by name.
        event_hubs: by name.
        hybrid_connections: by name.
        limits: of entities.
        connection_limits: of connections and links.
        authorization_rules: by path of the entity, "" for the namespace; entities that are not in it keep their rules.
        jwt: the issuer of web tokens; None accepts none.
        zones: folders of the three copies of the store; empty keeps one in the data folder.
        stated: the entities whose status the file states, as faults name them: `queue orders`, `subscription flights/all`. The others
            keep their status. The same applies to the number of partitions: `partitions of event hub clicks`.
    """

    name: str = ""
    queues: dict[str, QueueDescription] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    event_hubs: dict[str, EventHubDescription] = field(default_factory=dict)
    hybrid_connections: dict[str, HybridConnectionDescription] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    connection_limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    authorization_rules: dict[str, list[AuthorizationRule]] = field(default_factory=dict)
    jwt: JwtSettings | None = None
    zones: tuple[Path, ...] = ()
    stated: set[str] = field(default_factory=set)


class Reader:
    """Walks a file's nodes.

    Args:
        document: the file, and the faults found.
        layout: how it spells settings.
    """

    def __init__(self, document: Document, layout: Layout) -> None:
        self.document = document
        self.word = layout.word
        self.stated: set[str] = set()
        self._entities: set[str] = set()
        self._layout = layout
        self.use(Limits())

    def use(self, limits: Limits) -> None:
        """Read settings of entities within these limits."""
        self._max_time_to_live_ms = limits.tier.max_time_to_live_ms if limits.tier is not None else None
        self.queue = self._layout.spec(QueueDescription, "queue", limits)
        self.topic = self._layout.spec(TopicDescription, "topic", limits)
        self.subscription = self._layout.spec(SubscriptionDescription, "subscription", limits)
        self.event_hub = self._layout.spec(EventHubDescription, "event hub", limits)
        self.hybrid_connection = self._layout.spec(HybridConnectionDescription, "hybrid connection", limits)

    def description(
        self, kind: type[AnyDescription], spec: Spec, node: yaml.Node | None, what: str, *others: str
    ) -> AnyDescription:
        """A description from a mapping of settings; `others` are keys that are read elsewhere."""
        node = self.mapping(node)
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
            self.stated.add(what)
        if "partition_count" in fields:
            self.stated.add(f"partitions of {what}")
        life = self._max_time_to_live_ms
        if life is not None and "default_message_time_to_live_ms" in kind.__dataclass_fields__:
            fields.setdefault("default_message_time_to_live_ms", life)
        return kind(**fields)

    def sql(self, node: yaml.Node, what: str) -> Filter:
        """A SQL filter's expression."""
        expression = self.text(node, what)
        self._check(lambda: parse_filter(expression), node, what)
        return SqlFilter(expression)

    def action(self, node: yaml.Node, what: str) -> SqlAction | None:
        """A SQL action's expression; None for an empty one."""
        expression = self.text(node, what)
        self._check(lambda: parse_action(expression), node, what)
        return SqlAction(expression) if expression else None

    def _check(self, parse: Any, node: yaml.Node, what: str) -> None:
        try:
            parse()
        except RuleSyntaxError as error:
            for fault in error.faults:
                self.fault(node, f"{what}: column {fault.column}: {fault.message}", fault.hint)

    def correlation(self, node: yaml.Node, what: str) -> Filter:
        """A correlation filter's fields."""
        words = {self.word(name): name for name in CORRELATION_FIELDS}
        properties = self.word("properties")
        pairs = self.pairs(node, what, (*words, properties))
        values: dict[str, Any] = {words[w]: self.text(pairs[w][1], w) for w in words if w in pairs}
        if properties in pairs:
            inner = self.document.pairs(pairs[properties][1], f"{properties} of {what}")
            values["properties"] = {name: self._value(value, name) for name, (_, value) in inner.items()}
        if not values and isinstance(node, yaml.MappingNode):
            self.fault(node, f"{what} is empty", "write at least one field that messages must have")
        return CorrelationFilter(**values)

    def _value(self, node: yaml.Node, what: str) -> Parameter:
        """A property's value by its YAML type: text, whole number, decimal number, true or false."""
        if isinstance(node, yaml.ScalarNode):
            value = yaml.SafeLoader("").construct_object(node)
            if isinstance(value, str | bool | int | float):
                return value
            if value is not None:
                return str(node.value)
        self.fault(node, f"{what} is not a text, number, true or false", "")
        return ""

    # Nodes.

    def fault(self, node: yaml.Node, message: str, hint: str) -> None:
        """Notes a fault at a node's position."""
        self.document.fault(self.document.place(node), message, hint)

    def pairs(self, node: yaml.Node | None, what: str, known: tuple[str, ...]) -> Pairs:
        """A mapping's pairs, with a fault for each key that is not known."""
        pairs = self.document.pairs(node, what)
        for name, (key, _) in pairs.items():
            if name not in known:
                self.fault(key, f"{what} has no setting {name!r}", f"write one of {', '.join(known)}")
        return pairs

    @staticmethod
    def mapping(node: yaml.Node | None) -> yaml.Node | None:
        """The node, or None for nothing after the colon."""
        return None if node is None or Document.is_empty(node) else node

    def sequence(self, pairs: Pairs, name: str, what: str) -> list[yaml.Node]:
        """A list's items; none where there is no such key."""
        if name not in pairs:
            return []
        node = pairs[name][1]
        if not isinstance(node, yaml.SequenceNode):
            self.fault(node, f"{name} is not a list", f'write "{name}": […]')
            return []
        return list(node.value)

    def check_name(self, node: yaml.Node, name: str, what: str, kind: Kind, seen: set[str]) -> None:
        """Notes a fault for a name that is in use or that no entity may have."""
        # Queues and topics share one set of names; names that differ only in case are equal.
        taken = self._entities if kind is Kind.ENTITY else seen
        if name.lower() in taken:
            self.fault(node, f"{name} in {what} is there already", "rename or remove one; case makes no difference")
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
            self.fault(node, f"{wrong.message}: {name[:64]!r}", wrong.hint)

    def text(self, node: yaml.Node, what: str) -> str:
        """A scalar's text; empty, with a fault, where there is none."""
        if isinstance(node, yaml.ScalarNode) and not Document.is_empty(node):
            return str(node.value)
        self.fault(node, f"{what} takes one value", "")
        return ""
