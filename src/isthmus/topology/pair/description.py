"""The entities of one member of a pair, in a comparable form.

What it is: a queue, topic, subscription or rule with all its settings, and a snapshot of a whole namespace. What it is
not: the part of an entity that planning of tasks uses (`isthmus.topology.state`), or reading it from a namespace.

Invariants:
    I1. No description contains a key: authorisation rules are compared by a digest of their keys.
    I2. Names are compared without case, as Service Bus does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from isthmus.topology.file.duration import format_ms
from isthmus.topology.planning.finding import OWN

__all__ = [
    "CLOSED",
    "MARKER",
    "TAKES_NONE",
    "AccessRule",
    "Description",
    "EntityKind",
    "Key",
    "Snapshot",
    "closed",
    "kept",
    "label",
    "shown",
]

EntityKind: TypeAlias = Literal["queue", "topic", "subscription", "rule"]
Key: TypeAlias = tuple[str, ...]
"""The names of an entity, in lower case: for a rule those of its topic, its subscription and its own."""

MARKER = f"{OWN}pair."
"""Prefix of the queue in whose metadata a namespace stores which member of a pair is active."""

CLOSED: Mapping[str, str] = {"queue": "Disabled", "topic": "SendDisabled", "subscription": "ReceiveDisabled"}
"""The status by which an entity of a fenced member refuses applications. A topic has no ReceiveDisabled and a subscription no
SendDisabled (Microsoft Learn, "Suspend and reactivate messaging entities")."""

TAKES_NONE = frozenset({"SendDisabled", "Disabled"})
"""The statuses with which a queue or topic refuses messages."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """A shared access authorisation rule; `digest` represents its keys."""

    name: str
    rights: tuple[str, ...]
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, rights: Iterable[str], primary: str, secondary: str) -> AccessRule:
        """The rule with these keys, which are not stored."""
        text = f"{len(primary)}:{primary}{secondary}".encode()
        return cls(name, tuple(sorted(rights)), hashlib.sha256(text).digest())

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.rights)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """An entity.

    Attributes:
        kind: the kind of the entity.
        names: its own name after those of its parents.
        settings: by the names of the administration client; durations in milliseconds, forwarding targets as entity
            paths, "" for none. None: the namespace does not report it.
        native: the administration client's object, for creating a copy.
    """

    kind: EntityKind
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    native: Any = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        """Its names without case."""
        return tuple(name.lower() for name in self.names)

    @property
    def path(self) -> str:
        """Its path, e.g. `flights/Subscriptions/boards/Rules/big`."""
        return "".join(part + name for part, name in zip(("", "/Subscriptions/", "/Rules/"), self.names, strict=False))

    @property
    def forwards(self) -> tuple[str, ...]:
        """The keys of the entities that it forwards to."""
        targets = (self.settings.get(name) for name in ("forward_to", "forward_dead_lettered_messages_to"))
        return tuple(str(target).lower() for target in targets if target)

    @property
    def status(self) -> str:
        """Its status; rules have none."""
        return str(self.settings.get("status") or "Active")

    def with_settings(self, **changed: Any) -> Description:
        """The same with other settings."""
        return replace(self, settings={**self.settings, **changed})


Snapshot: TypeAlias = Mapping[Key, Description]
"""All entities of a namespace."""


def kept(descriptions: Iterable[Description], exclude: Iterable[str] = ()) -> dict[Key, Description]:
    """The descriptions that a pair keeps synchronised: not isthmus's own, and none that matches a pattern."""
    patterns = [pattern.lower() for pattern in exclude]

    def is_kept(each: Description) -> bool:
        if any(name.startswith(OWN) for name in each.key[:2]):
            return False
        return not any(fnmatchcase(each.key[0], pattern) for pattern in patterns)

    return {each.key: each for each in descriptions if is_kept(each)}


def closed(snapshot: Snapshot) -> dict[Key, Description]:
    """A snapshot as required at a fenced member."""
    return {
        key: each.with_settings(status=CLOSED[each.kind]) if each.kind in CLOSED else each
        for key, each in snapshot.items()
    }


def label(name: str) -> str:
    """The service's name of a setting, e.g. `LockDuration`."""
    return "".join(word.capitalize() for word in name.split("_"))


_DURATIONS = (
    "lock_duration",
    "auto_delete_on_idle",
    "default_message_time_to_live",
    "duplicate_detection_history_time_window",
)


def shown(name: str, value: Any) -> str:
    """A setting's value for people."""
    if value is None:
        return "?"
    if name in _DURATIONS:
        return format_ms(int(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) or "none"
