"""The `{entity}/$management` nodes: what Service Bus offers by request and reply beside its links."""

from __future__ import annotations

from isthmus.broker.management.node import MANAGEMENT_STYLE, MANAGEMENT_SUFFIX, Management

__all__ = ["MANAGEMENT_STYLE", "MANAGEMENT_SUFFIX", "Management"]
