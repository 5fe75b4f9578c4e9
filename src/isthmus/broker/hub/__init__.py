"""Event hubs on the wire: sending and receiving links, owner levels, and the namespace's `$management` node.

What it is not: the logs themselves (`isthmus.entities.hub`). `gate` is the one place where a connection asks about event
hubs; nothing else here is known to it.
"""

from __future__ import annotations

from isthmus.broker.hub.gate import HUB_NODE, HubGate
from isthmus.broker.hub.intake import HubIntake
from isthmus.broker.hub.outlet import HubOutlet

__all__ = ["HUB_NODE", "HubGate", "HubIntake", "HubOutlet"]
