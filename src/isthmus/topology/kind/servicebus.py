"""The kind `servicebus`; the reader knows its settings (`isthmus.topology.reader`)."""

from __future__ import annotations

from isthmus.topology.kind.base import NamespaceKind

__all__ = ["SERVICE_BUS"]

SERVICE_BUS = NamespaceKind(name="servicebus", title="Azure Service Bus")
