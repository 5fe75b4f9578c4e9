"""What a token or a key permits.

What it is: rights, and a grant of them at and below a path. What it is not: how one is obtained (`authority`), or the grants of a
connection (`access`). Spec: service-bus-sas.md.

Invariants:
    I1. A grant never exceeds its scope.
    I2. No repr contains a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from isthmus.broker.security.sas import canonical_path, covers

__all__ = ["Grant", "Right"]


class Right(StrEnum):
    """What a rule permits."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token or key permits.

    Attributes:
        scope_path: canonical path at and below which the rights apply; ``""`` is the whole namespace.
        rights: Manage includes the others.
        key_name: the rule of the key.
        expires_at_ms: wall time after which the grant is void; None for a key given directly.
        key: the shared key; "" for a web token.
    """

    scope_path: str
    rights: frozenset[Right]
    key_name: str
    expires_at_ms: int | None = None
    key: str = field(default="", repr=False)

    def covers(self, path: str, right: Right) -> bool:
        """Whether the grant permits `right` on an address such as ``sb://host/queue`` or ``topic/Subscriptions/s``."""
        return (right in self.rights or Right.MANAGE in self.rights) and covers(self.scope_path, canonical_path(path))

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and now_ms >= self.expires_at_ms
