"""The names of a namespace's entities, and their rows in the store.

What it is: one row per queue, topic, subscription and rule, and the syntax of names and addresses.
What it is not: the entities themselves (`engine`). Spec: docs/explanation/protocol.md, Links, Administration.

Invariants:
    I1. Names are compared without case and kept as they were written.
    I2. A number is never assigned twice, not even after its entity was deleted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from isthmus.entities.catalog.description import Description, dump, load
from isthmus.entities.storage.key import CATALOG
from isthmus.errors import InvalidArgumentError

__all__ = ["Address", "Entry", "catalog_key", "check_name", "parse_address", "unpack_entry"]

_NAME = re.compile(r"[^\W_](?:[\w./-]*[^\W_])?", re.ASCII)
_RULE_NAME = re.compile(r"[\w$][\w.$-]*", re.ASCII)
# The kinds whose names may be paths.
_WITH_SLASHES = ("queue", "topic", "hybrid connection")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


@dataclass(slots=True)
class Entry:
    """One row.

    Attributes:
        kind: ``queue``, ``topic``, ``subscription`` or ``rule``.
        names: as written: (queue), (topic), (topic, subscription) or (topic, subscription, rule).
        number: of the entity; its dead-letter queue has the next. 0 for rules.
        transfer_number: of its transfer dead-letter queue; 0 if it has none.
        fragments: the number of fragments of a partitioned entity, each with numbers of its own from `number` on; 0 for others.
        stores: the number of stores over which they are spread.
    """

    kind: str
    names: tuple[str, ...]
    number: int
    created_at_ms: int
    updated_at_ms: int
    description: Description
    transfer_number: int = 0
    fragments: int = 0
    stores: int = 0

    def pack(self) -> bytes:
        """The row's value."""
        row = {
            "kind": self.kind,
            "names": self.names,
            "number": self.number,
            "created_at_ms": self.created_at_ms,
            "updated_at_ms": self.updated_at_ms,
            "description": dump(self.description).decode(),
            "transfer_number": self.transfer_number,
        }
        if self.fragments:
            row |= {"fragments": self.fragments, "stores": self.stores}
        return json.dumps(row).encode()


def unpack_entry(value: bytes) -> Entry:
    """The entry that `Entry.pack` wrote."""
    row = json.loads(value)
    description: Description = load(row["description"].encode(), object)  # type: ignore[assignment]  # as packed
    return Entry(
        row["kind"],
        tuple(row["names"]),
        row["number"],
        row["created_at_ms"],
        row["updated_at_ms"],
        description,
        row.get("transfer_number", 0),
        row.get("fragments", 0),
        row.get("stores", 0),
    )


def catalog_key(kind: str, *names: str) -> bytes:
    """The key of an entity's row; sorts an entity before its subscriptions and rules."""
    order = {"queue": "1", "topic": "2", "subscription": "3", "rule": "4"}[kind]
    return bytes((CATALOG,)) + (order + "\x00".join(name.lower() for name in names)).encode()


def check_name(kind: str, name: str, limit: int) -> None:
    """Refuse a name that the service refuses.

    Raises:
        InvalidArgumentError: with the fault.
    """
    pattern = _RULE_NAME if kind == "rule" else _NAME
    if not name or len(name) > limit:
        raise InvalidArgumentError(f"The {kind} name '{name}' has {len(name)} characters; 1 to {limit} are allowed.")
    if not pattern.fullmatch(name) or (kind == "subscription" and "/" in name):
        raise InvalidArgumentError(
            f"The {kind} name '{name}' is not valid; use letters, digits, '.', '-', '_'"
            + (" and '/'" if kind in _WITH_SLASHES else "")
            + ", and begin and end with a letter or digit."
        )
    if kind in _WITH_SLASHES and ("//" in name or "/subscriptions/" in f"/{name.lower()}/"):
        raise InvalidArgumentError(f"The {kind} name '{name}' contains an empty or reserved path segment.")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed AMQP address.

    Attributes:
        name: queue or topic, lower case.
        subscription: lower case; None if the address names none.
        suffix: ``""``, ``"dead-letter"`` or ``"transfer"`` (the transfer dead-letter queue).
    """

    name: str
    subscription: str | None
    suffix: str


def parse_address(path: str) -> Address:
    """Parse an address: relative or absolute, in any case."""
    text = _SCHEME.sub("", path).strip("/").lower()
    suffix = ""
    if text.endswith("/$transfer/$deadletterqueue"):
        text, suffix = text[: -len("/$transfer/$deadletterqueue")], "transfer"
    elif text.endswith("/$deadletterqueue"):
        text, suffix = text[: -len("/$deadletterqueue")], "dead-letter"
    name, separator, subscription = text.rpartition("/subscriptions/")
    return Address(name, subscription, suffix) if separator else Address(text, None, suffix)
