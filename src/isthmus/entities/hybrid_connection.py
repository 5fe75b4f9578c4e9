"""The hybrid connections of a namespace: their settings, and their rows in the store.

What it is: created, changed, deleted and found by name. What it is not: the relay, which forwards connections and requests to
listeners and stores nothing (`isthmus.broker.relay`).
Spec: Microsoft Learn, "What is Azure Relay?" and the REST reference of Azure Relay (hybrid connections).

Invariants:
    I1. After a restart, and after a failed commit, every hybrid connection is as of the last synced commit.
    I2. A name belongs to one queue, topic, event hub or hybrid connection, in any case of its letters.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from isthmus.clock import Clock
from isthmus.entities.catalog.catalog import check_name
from isthmus.entities.catalog.description import AuthorizationRule, EntityStatus, dump, load
from isthmus.entities.catalog.key_name import KeyNames
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.storage.staging import Staging
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, QuotaExceededError

__all__ = ["HybridConnectionDescription", "HybridConnectionRow", "HybridConnections"]

_log = logging.getLogger(__name__)

_TABLE = 0x70


@dataclass(slots=True)
class HybridConnectionDescription:
    """A hybrid connection's settings.

    Attributes:
        requires_client_authorization: whether a requester has to send a token with Send; listeners always need Listen.
        status: Active, or Disabled: nothing is relayed.
        user_metadata: free text.
        authorization_rules: keys with rights on it, besides those of the namespace.
    """

    requires_client_authorization: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)


@dataclass(slots=True)
class HybridConnectionRow:
    """One row; `name` is as written."""

    name: str
    created_at_ms: int
    updated_at_ms: int
    description: HybridConnectionDescription

    def pack(self) -> bytes:
        """The row's value."""
        described = self.description
        return json.dumps(
            {
                "name": self.name,
                "created_at_ms": self.created_at_ms,
                "updated_at_ms": self.updated_at_ms,
                "requires_client_authorization": described.requires_client_authorization,
                "status": str(described.status),
                "user_metadata": described.user_metadata,
                "authorization_rules": dump(described.authorization_rules).decode(),
            }
        ).encode()

    @classmethod
    def unpack(cls, value: bytes) -> HybridConnectionRow:
        """The row that `pack` wrote."""
        row = json.loads(value)
        description = HybridConnectionDescription(
            requires_client_authorization=row["requires_client_authorization"],
            status=EntityStatus(row["status"]),
            user_metadata=row["user_metadata"],
            authorization_rules=load(row["authorization_rules"].encode(), list),
        )
        return cls(row["name"], row["created_at_ms"], row["updated_at_ms"], description)


class HybridConnections:
    """The hybrid connections of one namespace.

    Args:
        staging: the namespace's.
        clock: wall and monotonic time.
        limits: of the namespace.
        is_taken: whether another entity has a name, given in lower case.

    Attributes:
        key_names: the hybrid connections by the names of their authorization rules.
        on_change: called with the name, in lower case, of each that was changed or deleted; "" means that any may have been.
    """

    def __init__(self, staging: Staging, clock: Clock, limits: Limits, is_taken: Callable[[str], bool]) -> None:
        self._staging = staging
        self._clock = clock
        self._limits = limits
        self._is_taken = is_taken
        self._rows: dict[str, HybridConnectionRow] = {}
        self.key_names = KeyNames()
        self.on_change: Callable[[str], None] = lambda name: None
        self._load()

    def _load(self) -> None:
        values = self._staging.journal.scan(bytes((_TABLE,)), bytes((_TABLE + 1,)))
        rows = [HybridConnectionRow.unpack(value) for _, value in values]  # all, before anything is dropped
        self._rows = {}
        self.key_names.clear()
        for row in rows:
            self._apply(row)

    def reload(self) -> None:
        """Go back to the state of the store, after a failed commit."""
        self._load()
        try:
            self.on_change("")
        except Exception:  # noqa: BLE001 - a fault of the relay must not end the reload
            _log.exception("a fault of the relay's callback of a reload")

    def _apply(self, row: HybridConnectionRow) -> None:
        self._rows[row.name.lower()] = row
        self.key_names.put(row.name, row.description.authorization_rules)

    # ---- lookup

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._rows

    def get(self, name: str) -> HybridConnectionDescription | None:
        """A hybrid connection's settings; None if there is none of that name."""
        row = self._rows.get(name.lower())
        return row.description if row else None

    def row(self, name: str) -> HybridConnectionRow:
        """A hybrid connection's row.

        Raises:
            EntityNotFoundError: there is none of that name.
        """
        row = self._rows.get(name.lower())
        if row is None:
            raise EntityNotFoundError(name)
        return row

    def names(self) -> list[str]:
        """Names as created, ordered by lower-case name."""
        return [row.name for _, row in sorted(self._rows.items())]

    # ---- changes

    def create(self, name: str, description: HybridConnectionDescription | None = None) -> HybridConnectionDescription:
        """Create one; durable with the next commit.

        Raises:
            EntityExistsError: an entity of that name exists.
            InvalidArgumentError: the name or a setting is not allowed.
            QuotaExceededError: the namespace has as many as it may have.
        """
        if name in self or self._is_taken(name.lower()):
            raise EntityExistsError(name)
        check_name("hybrid connection", name, self._limits.max_entity_name_characters)
        if len(self._rows) >= self._limits.max_entities:
            raise QuotaExceededError(
                f"The namespace has {self._limits.max_entities} hybrid connections, as many as it may have."
            )
        made = self._checked(description or HybridConnectionDescription())
        now_ms = self._clock.wall_ms()
        self._stage(HybridConnectionRow(name, now_ms, now_ms, made))
        return made

    def update(self, name: str, description: HybridConnectionDescription) -> HybridConnectionDescription:
        """Replace the settings of one.

        Raises:
            EntityNotFoundError: there is none of that name.
            InvalidArgumentError: a setting is not allowed.
        """
        row = self.row(name)
        made = self._checked(description)
        self._stage(HybridConnectionRow(row.name, row.created_at_ms, self._clock.wall_ms(), made))
        self.on_change(name.lower())
        return made

    def delete(self, name: str) -> None:
        """Remove one.

        Raises:
            EntityNotFoundError: there is none of that name.
        """
        row = self.row(name)
        del self._rows[name.lower()]
        self.key_names.remove(name)
        self._staging.batch.delete(_key(row.name))
        self.on_change(name.lower())

    def _stage(self, row: HybridConnectionRow) -> None:
        self._apply(row)
        self._staging.batch.put(_key(row.name), row.pack())

    def _checked(self, description: HybridConnectionDescription) -> HybridConnectionDescription:
        length, limit = len(description.user_metadata or ""), self._limits.max_user_metadata_characters
        if length > limit:
            raise InvalidArgumentError(f"UserMetadata has {length} characters; {limit} are allowed.")
        if description.status not in (EntityStatus.ACTIVE, EntityStatus.DISABLED):
            raise InvalidArgumentError(f"Status is {description.status}; a hybrid connection is Active or Disabled.")
        return replace(description)


def _key(name: str) -> bytes:
    return bytes((_TABLE,)) + name.lower().encode()
