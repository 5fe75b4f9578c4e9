"""An event hub's settings, and its row in the store.

What it is: the description and its form as JSON. Spec: docs/explanation/protocol.md, Event Hubs; Event Hubs quotas for the limits.

Invariants:
    I1. Consumer groups are kept as they were written and compared without case; ``$Default`` always exists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from isthmus.entities.catalog.description import AuthorizationRule, EntityStatus, dump, load

__all__ = ["DEFAULT_CONSUMER_GROUP", "EventHubDescription", "HubRow"]

DEFAULT_CONSUMER_GROUP = "$Default"
_DAY_MS = 86_400_000


@dataclass(slots=True)
class EventHubDescription:
    """An event hub's settings.

    Attributes:
        partition_count: can be raised later, never lowered.
        message_retention_ms: age in ms at which events may be removed.
        partition_retention_in_megabytes: size at which a partition's oldest events may be removed; None is without limit.
        consumer_groups: besides ``$Default``.
        consumer_group_metadata: UserMetadata of consumer groups, ``$Default`` included, by lower-case name.
        max_message_size_in_kilobytes: of one transfer, a batch as a whole; None takes the namespace's limit.
    """

    partition_count: int = 4
    message_retention_ms: int = 7 * _DAY_MS
    partition_retention_in_megabytes: int | None = None
    consumer_groups: list[str] = field(default_factory=list)
    status: EntityStatus = EntityStatus.ACTIVE
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None
    consumer_group_metadata: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class HubRow:
    """One row.

    Attributes:
        name: as written.
        numbers: of the partitions, by partition id.
    """

    name: str
    numbers: list[int]
    created_at_ms: int
    updated_at_ms: int
    description: EventHubDescription

    def pack(self) -> bytes:
        """The row's value."""
        settings: dict[str, Any] = {
            each.name: getattr(self.description, each.name)
            for each in fields(self.description)
            if each.name != "authorization_rules"
        }
        return json.dumps(
            {
                "name": self.name,
                "numbers": self.numbers,
                "created_at_ms": self.created_at_ms,
                "updated_at_ms": self.updated_at_ms,
                "settings": settings,
                "authorization_rules": dump(self.description.authorization_rules).decode(),
            }
        ).encode()

    @classmethod
    def unpack(cls, value: bytes) -> HubRow:
        """The row that `pack` wrote."""
        row = json.loads(value)
        known = {each.name for each in fields(EventHubDescription)}
        settings = {name: setting for name, setting in row["settings"].items() if name in known}
        settings["status"] = EntityStatus(settings["status"])
        rules = load(row["authorization_rules"].encode(), list)
        description = EventHubDescription(**settings, authorization_rules=rules)
        return cls(row["name"], row["numbers"], row["created_at_ms"], row["updated_at_ms"], description)
