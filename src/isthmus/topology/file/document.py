"""The federation file as YAML nodes with line and column.

What it is: the composition of the text, and a reader that converts mappings to settings while it collects every fault with
line and column. What it is not: the meaning of the settings, which `isthmus.topology.file.reader` and the patterns define.

Invariants:
    I1. No text makes it raise anything but `ConfigError`, including aliases that contain themselves and deep nesting.
    I2. A doubled key, an unknown key and a key that is not available yet are faults.
    I3. A fault never repeats a value that looks like a secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from isthmus.errors import ConfigError, Fault
from isthmus.topology.file.reference import SecretError, SecretReference
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec

__all__ = ["Document", "Place", "Values", "compose"]

Node = yaml.nodes.Node

# A federation file nests five deep; PyYAML's composer recurses, so a bound keeps hostile files from its stack.
_DEPTH_LIMIT = 60
_LITERAL_SECRET = re.compile(
    r"(?i)(sharedaccesskey|sharedaccesssignature|accountkey)\s*=|endpoint=sb://|sharedaccesssignature sr=|"
    r"://[^/\s:@]*:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_SECRET_KEY = re.compile(r"(?i)^(password|secret|token|(shared_?access_?|access_?|account_?)?key|sas)$")


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file; both 1-based, 0 for none."""

    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Values:
    """The content of a mapping: parsed values by setting name, and their positions.

    A setting that was not written has its default as value and the mapping's position. A faulty one also has its
    default, and is named in `faulty`, so that no second fault follows from the first.
    """

    place: Place
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    faulty: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def written(self, name: str) -> bool:
        """Whether the file contains this setting, valid or not."""
        return name in self.places

    def at(self, name: str) -> Place:
        """The setting's position, or the mapping's if it is not written."""
        return self.places.get(name, self.place)


class _TooDeepError(ValueError):
    def __init__(self, event: Any) -> None:
        super().__init__("nested too deep")
        self.place = Place(event.start_mark.line + 1, event.start_mark.column + 1)


def compose(text: str, file: str) -> tuple[Document, Node | None]:
    """The root node of a text, or None with a fault."""
    document = Document(file)
    try:
        _refuse_depth(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        document.fault(place, f"not YAML: {error.problem or error.context}", "check indentation, brackets and quotes")
        return document, None
    except _TooDeepError as error:
        document.fault(error.place, "nested too deep", "write at most five levels")
        return document, None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error).partition("\n")[0]
        document.fault(Place(1, 1), f"not YAML: {reason}", "save the file as plain UTF-8 text")
        return document, None
    if root is None:
        document.fault(Place(1, 1), "the file is empty", "start with one from: isthmus init all-active")
    else:
        document.scan_secrets(root)
    return document, root


def _refuse_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_LIMIT:
                raise _TooDeepError(event)
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1


class Document:
    """Reads nodes of one file and collects its faults."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self._secrets: set[int] = set()

    def fault(self, place: Place, message: str, hint: str = "") -> None:
        """Record a fault."""
        self.faults.append(Fault(message, hint, self.file, place.line, place.column))

    def warn(self, place: Place, message: str, hint: str = "") -> None:
        """Record a warning: allowed, but harmful later."""
        self.warnings.append(Fault(message, hint, self.file, place.line, place.column))

    def error(self) -> ConfigError:
        """All faults so far as one error, in the order in which they are in the file."""
        return ConfigError(sorted(set(self.faults), key=lambda fault: (fault.line, fault.column, fault.message)))

    @staticmethod
    def place(node: Node) -> Place:
        """The position of a node."""
        return Place(node.start_mark.line + 1, node.start_mark.column + 1)

    def scan_secrets(self, root: Node) -> None:
        """Fault every scalar below a node that contains a secret instead of a reference to one."""
        pending, seen = [root], set()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    pending += [key, value]
                    named = isinstance(key, yaml.ScalarNode) and _SECRET_KEY.match(key.value)
                    if named and isinstance(value, yaml.ScalarNode) and value.value and not _is_reference(value.value):
                        self._refuse_secret(value, key.value)
            elif isinstance(node, yaml.SequenceNode):
                pending += node.value
            elif _LITERAL_SECRET.search(node.value):
                self._refuse_secret(node)

    def _refuse_secret(self, node: Node, setting: str = "connection") -> None:
        if id(node) not in self._secrets:
            self._secrets.add(id(node))
            self.fault(
                self.place(node),
                "a secret is in the file",
                f"write a reference instead: {setting}: env:NAME, file:/path#key or keyvault:vault/name",
            )

    def pairs(self, node: Node | None, what: str) -> dict[str, tuple[Node, Node]]:
        """Key text → (key node, value node) of a mapping; merge keys (`<<`) are followed, written keys win."""
        if not isinstance(node, yaml.MappingNode):
            if node is not None:
                self.fault(self.place(node), f"{what} is not a mapping", "write name: value lines")
            return {}
        found: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fault(self.place(key), f"a key of {what} is not plain text", "write name: value")
            elif key.tag == "tag:yaml.org,2002:merge":
                continue
            elif key.value in found:
                first = self.place(found[key.value][0])
                self.fault(
                    self.place(key),
                    f"{key.value} appears twice in {what}",
                    f"remove one; the first is in line {first.line}",
                )
            else:
                found[key.value] = (key, value)
        for merged_key, merged_value in self._merged(node):
            found.setdefault(merged_key.value, (merged_key, merged_value))
        return found

    def _merged(self, root: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, Node]]:
        pending, seen = [root], {id(root)}
        while pending:
            mapping = pending.pop(0)
            for key, value in mapping.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.tag != "tag:yaml.org,2002:merge":
                    if mapping is not root:
                        yield key, value
                    continue
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode):
                        self.fault(self.place(source), "<< needs an alias of a mapping", "write <<: *name")
                    elif id(source) not in seen:
                        seen.add(id(source))
                        pending.append(source)

    def settings(self, node: Node | None, spec: Spec, what: str, *, ignore: frozenset[str] = frozenset()) -> Values:
        """Read a mapping by its spec: unknown, unavailable, missing and malformed settings become faults."""
        values = Values(self.place(node) if node is not None else Place())
        pairs = self.pairs(node, what)
        for name, (key, value) in pairs.items():
            if name in ignore:
                continue
            setting = spec.get(name)
            if setting is None or not setting.available:
                self._refuse_key(key, spec, what, setting)
                continue
            values.places[name] = self.place(value)
            self._read(values, setting, value)
        for setting in spec.settings:
            if setting.name not in values.values:
                values.values[setting.name] = setting.default
            if setting.required and setting.name not in pairs and isinstance(node, yaml.MappingNode):
                self.fault(values.place, f"{what} has no {setting.name}", f"write {setting.name}: {setting.example}")
                values.faulty.add(setting.name)
        return values

    def _refuse_key(self, key: Node, spec: Spec, what: str, setting: Setting | None) -> None:
        if setting is not None and setting.refusal is not None:
            self.fault(self.place(key), *setting.refusal)
            return
        if setting is not None:
            self.fault(self.place(key), f"{key.value} is not available yet in {what}", "remove it")
            return
        self.fault(self.place(key), f"{what} has no setting {key.value!r}", suggest(key.value, spec.names()))

    def _read(self, values: Values, setting: Setting, node: Node) -> None:
        try:
            if setting.kind in (Kind.ALIASES, Kind.NAMES):
                values.values[setting.name] = self._named(setting, node)
            elif setting.kind is Kind.TEXTS:
                values.values[setting.name] = self._texts(setting, node)
            elif setting.kind is Kind.PAIRS:
                values.values[setting.name] = self._pairs(setting, node)
            elif setting.kind in {Kind.SUBSCRIPTIONS, Kind.MAPPING, Kind.LIST, Kind.TREE, Kind.STEPS, Kind.RATE}:
                values.values[setting.name] = node
            elif id(node) in self._secrets:
                values.faulty.add(setting.name)
            else:
                values.values[setting.name] = setting.parse(self.scalar(setting, node))
        except SettingError as wrong:
            values.faulty.add(setting.name)
            self.fault(self.place(node), wrong.message, wrong.hint)

    @staticmethod
    def scalar(setting: Setting, node: Node) -> str:
        """The text of a scalar as written, whatever type YAML would give it, e.g. `no` and `007`."""
        hint = f"write {setting.name}: {setting.example}" if setting.example else ""
        if not isinstance(node, yaml.ScalarNode):
            raise SettingError(f"{setting.name} takes one value", hint)
        if node.tag == "tag:yaml.org,2002:null":
            raise SettingError(f"{setting.name} is empty", hint)
        return str(node.value)

    @staticmethod
    def is_empty(node: Node) -> bool:
        """Whether a node is null, e.g. nothing after the colon."""
        return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"

    @staticmethod
    def is_bare(node: Node | None) -> bool:
        """Whether a node is an empty mapping."""
        return isinstance(node, yaml.MappingNode) and not node.value

    def items(self, node: object, what: str, example: str) -> Iterator[tuple[Node, Node | None]]:
        """The items of a list as (item, None), or those of a mapping as (key, value)."""
        if isinstance(node, yaml.SequenceNode):
            yield from ((item, None) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            yield from self.pairs(node, what).values()
        elif isinstance(node, yaml.Node):
            self.fault(self.place(node), f"{what} is neither a list nor a mapping", f"write {what}: {example}")

    def listed(self, node: object, what: str, example: str) -> Iterator[Node]:
        """The items of a list."""
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        elif isinstance(node, yaml.Node):
            self.fault(self.place(node), f"{what} is not a list", f"write {what}: {example}")

    @staticmethod
    def text(node: object) -> str:
        """The text of a scalar; empty for anything else."""
        return str(node.value) if isinstance(node, yaml.ScalarNode) else ""

    def _named(self, setting: Setting, node: Node) -> tuple[tuple[str, Place], ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise SettingError(f"{setting.name} is not a list", f"write {setting.name}: {setting.example}")
        found: list[tuple[str, Place]] = []
        for item in node.value:
            try:
                found.append((setting.parse(self.scalar(setting, item)), self.place(item)))
            except SettingError as wrong:
                self.fault(self.place(item), wrong.message, wrong.hint)
        return tuple(found)

    def _texts(self, setting: Setting, node: Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise SettingError(f"{setting.name} is not a list", f"write {setting.name}: {setting.example}")
        return tuple(self.scalar(setting, item) for item in node.value)

    def _pairs(self, setting: Setting, node: Node) -> dict[str, str]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise SettingError(f"{setting.name} is not a mapping", f"write {setting.name}: {setting.example}")
        return {name: self.scalar(setting, value) for name, (_, value) in self.pairs(node, setting.name).items()}


def _is_reference(text: str) -> bool:
    try:
        SecretReference.parse(text)
    except SecretError:
        return False
    return True


def suggest(word: str, known: tuple[str, ...] | list[str] | Mapping[str, Any]) -> str:
    """A hint that names the nearest of the known words, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(
        word.lower().replace("-", "_"), names, n=1, cutoff=0.6
    ) or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"write {near[0]}"
    return f"write one of {', '.join(names)}" if names else ""
