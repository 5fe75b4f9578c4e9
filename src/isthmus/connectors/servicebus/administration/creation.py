"""When a subscription was created.

What it is: one query of a namespace's administration. What it is not: the settings of a subscription (`administration`).
"""

from __future__ import annotations

from datetime import UTC

from isthmus.connectors.servicebus.administration.client import administration_errors, open_administration_client
from isthmus.topology import NamespaceRef

__all__ = ["created_ms"]

_SUBSCRIPTIONS = "/Subscriptions/"


def created_ms(namespace: NamespaceRef, path: str) -> int:
    """The wall time at which a subscription was created, by the namespace's clock; 0 for another entity.

    Args:
        namespace: of kind servicebus.
        path: of the entity.

    Raises:
        SecretError, ConnectionStringError: the connection cannot be resolved.
        AdministrationError: no answer, or a refusal.
    """
    topic, _, name = path.partition(_SUBSCRIPTIONS)
    if not name:
        return 0
    opened = open_administration_client(namespace)
    try:
        with administration_errors(opened.endpoint):
            found = opened.client.get_subscription_runtime_properties(topic, name).created_at_utc
    finally:
        opened.client.close()
    if found is None:
        return 0
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
