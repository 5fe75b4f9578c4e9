"""Event hubs: partitioned logs that many consumer groups read at their own pace; pure, over the namespace's `Journal`.

What it is: descriptions, placement of events on partitions, the log of one partition with its retention, positions in
it, and the registry of a namespace's event hubs. What it is not: links, epochs of receivers and `$management`
(`isthmus.broker.hub`); queues and topics, with which it shares the store, the group commit and nothing else.
"""

from __future__ import annotations

from isthmus.entities.hub.cursor import Cursor
from isthmus.entities.hub.description import DEFAULT_CONSUMER_GROUP, EventHubDescription, HubRow
from isthmus.entities.hub.hub import EventHub
from isthmus.entities.hub.partition import Partition, PartitionState
from isthmus.entities.hub.registry import EventHubs
from isthmus.entities.hub.selector import Selector, parse_selector

__all__ = [
    "DEFAULT_CONSUMER_GROUP",
    "Cursor",
    "EventHub",
    "EventHubDescription",
    "EventHubs",
    "HubRow",
    "Partition",
    "PartitionState",
    "Selector",
    "parse_selector",
]
