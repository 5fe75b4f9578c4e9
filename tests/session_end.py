"""Queues that require sessions as sources of the conformance suite: all messages of a queue belong to one session, whose order is the queue's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from isthmus.amqp import section
from servicebus_end import ServiceBusEnd

__all__ = ["SessionEnd"]

SESSION = "one"


class SessionEnd(ServiceBusEnd):
    """Namespaces whose sources require sessions."""

    source_settings: ClassVar[Mapping[str, Any]] = {"requires_session": True}
    source_options: ClassVar[Mapping[str, str]] = {"sessions": "4"}

    def message(self, key: str, body: bytes, ttl_ms: int) -> bytes:
        """A message of the session."""
        header = section.Header(ttl_ms=ttl_ms) if ttl_ms else None
        properties: dict[str, Any] = {"message_id": key, "group_id": SESSION}
        return section.encode_message(body, header=header, properties=properties)
