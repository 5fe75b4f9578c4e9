"""AMQP addresses of event hubs.

What it is: the grammar of ``hub``, ``hub/Partitions/n`` and ``hub/ConsumerGroups/g/Partitions/n``, in any case.
Spec: docs/explanation/protocol.md, Event Hubs.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HubAddress", "parse_hub_address"]


class HubAddress(NamedTuple):
    """A parsed address; None for the parts that it does not have."""

    hub: str
    group: str | None = None
    partition: str | None = None


def parse_hub_address(path: str) -> HubAddress | None:
    """Parses a path without scheme and authority; None if it has no such form."""
    match path.strip("/").split("/"):
        case [hub]:
            return HubAddress(hub)
        case [hub, word, partition] if word.lower() == "partitions":
            return HubAddress(hub, None, partition)
        case [hub, word, group] if word.lower() == "consumergroups":
            return HubAddress(hub, group)
        case [hub, word, group, other, partition] if (word.lower(), other.lower()) == ("consumergroups", "partitions"):
            return HubAddress(hub, group, partition)
    return None
