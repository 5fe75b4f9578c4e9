"""Event hubs on the wire: sending and receiving links, owner levels, and the namespace's `$management` node.

What it is not: the logs themselves (`isthmus.entities.hub`). `gate` is the only interface for a connection to event
hubs.
"""

from __future__ import annotations

from isthmus.broker.hub.gate import HUB_NODE, HubGate
from isthmus.broker.hub.receiver_link import HubReceiverLink
from isthmus.broker.hub.sender_link import HubSenderLink

__all__ = ["HUB_NODE", "HubGate", "HubReceiverLink", "HubSenderLink"]
