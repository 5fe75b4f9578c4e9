"""Which HTTP statuses say that the same request may succeed later.

What it is: the rule for the services beside a namespace: its administration, vaults, token services, storage. What it is not: the rule of a
target that is sent messages (`isthmus.connectors.http.target`, `isthmus.connectors.queuestorage.client`), which has more of them.
Specification: RFC 9110, 15.5.9 (408) and 15.6 (5xx); RFC 6585, 4 (429).
"""

from __future__ import annotations

__all__ = ["may_succeed_later"]

_LATER = frozenset({408, 429})


def may_succeed_later(status: int) -> bool:
    """Whether a service is busy, restarts, or is not behind its gateway."""
    return status in _LATER or status >= 500
