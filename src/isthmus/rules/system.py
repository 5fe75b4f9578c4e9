"""The system properties that ``sys.`` names: their canonical spelling, type, and whether an action may set them.

Spec: docs/explanation/protocol.md, Message, Filter language. A name that is not here is refused when the rule is parsed.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from isthmus.rules.value import Kind

__all__ = ["SYSTEM_PROPERTIES", "SystemProperty", "canonical_name", "closest_name"]


@dataclass(frozen=True, slots=True)
class SystemProperty:
    """One property that the broker or the message's fixed sections hold.

    Attributes:
        name: canonical spelling, as `View.sys` gets it.
        kind: type of its value.
        writable: whether an action may SET or REMOVE it.
        correlated: whether a correlation filter may name it.
        aliases: other spellings, besides case.
    """

    name: str
    kind: Kind
    writable: bool = False
    correlated: bool = False
    aliases: tuple[str, ...] = ()


_ALL: Final = (
    SystemProperty("MessageId", Kind.STRING, writable=True, correlated=True),
    SystemProperty("CorrelationId", Kind.STRING, writable=True, correlated=True),
    SystemProperty("Label", Kind.STRING, writable=True, correlated=True, aliases=("Subject",)),
    SystemProperty("To", Kind.STRING, writable=True, correlated=True),
    SystemProperty("ReplyTo", Kind.STRING, writable=True, correlated=True),
    SystemProperty("SessionId", Kind.STRING, writable=True, correlated=True),
    SystemProperty("ReplyToSessionId", Kind.STRING, writable=True, correlated=True),
    SystemProperty("ContentType", Kind.STRING, writable=True, correlated=True),
    SystemProperty("PartitionKey", Kind.STRING, writable=True),
    SystemProperty("ViaPartitionKey", Kind.STRING, writable=True, aliases=("TransactionPartitionKey",)),
    SystemProperty("TimeToLive", Kind.TIMESPAN, writable=True),
    SystemProperty("ScheduledEnqueueTimeUtc", Kind.DATETIME, writable=True, aliases=("ScheduledEnqueueTime",)),
    SystemProperty("EnqueuedTimeUtc", Kind.DATETIME, aliases=("EnqueuedTime",)),
    SystemProperty("ExpiresAtUtc", Kind.DATETIME, aliases=("ExpiresAt",)),
    SystemProperty("LockedUntilUtc", Kind.DATETIME, aliases=("LockedUntil",)),
    SystemProperty("SequenceNumber", Kind.LONG),
    SystemProperty("EnqueuedSequenceNumber", Kind.LONG),
    SystemProperty("DeliveryCount", Kind.LONG),
    SystemProperty("Size", Kind.LONG),
    SystemProperty("DeadLetterSource", Kind.STRING),
)

SYSTEM_PROPERTIES: Final[dict[str, SystemProperty]] = {one.name: one for one in _ALL}

_CANONICAL: Final[dict[str, str]] = {
    spelling.lower(): one.name for one in _ALL for spelling in (one.name, *one.aliases)
}


def canonical_name(name: str) -> str | None:
    """The canonical spelling of a system property's name in any case, or None for a name that is none."""
    return _CANONICAL.get(name.lower())


def closest_name(name: str) -> str | None:
    """The system property that a misspelt name most likely means."""
    found = difflib.get_close_matches(name.lower(), _CANONICAL, n=1, cutoff=0.6)
    return _CANONICAL[found[0]] if found else None
