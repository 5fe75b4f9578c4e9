"""The `{entity}/$management` nodes: the operations that Service Bus offers by request and reply besides its links."""

from __future__ import annotations

from isthmus.broker.management.node import MANAGEMENT_STYLE, MANAGEMENT_SUFFIX, Management

__all__ = ["MANAGEMENT_STYLE", "MANAGEMENT_SUFFIX", "Management"]
