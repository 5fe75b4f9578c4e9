"""The kind `servicebus`; the reader declares its settings (`isthmus.topology.file.reader`)."""

from __future__ import annotations

from isthmus.topology.kind.base import NamespaceKind

__all__ = ["SERVICE_BUS"]

SERVICE_BUS = NamespaceKind(
    name="servicebus",
    title="Azure Service Bus",
    granted_by={
        "listen": "Listen of a shared access policy, or the role Azure Service Bus Data Receiver",
        "send": "Send of a shared access policy, or the role Azure Service Bus Data Sender",
        "manage": "Manage of a shared access policy of the namespace, or the role Azure Service Bus Data Owner",
    },
)
