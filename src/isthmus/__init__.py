"""isthmus federates message queues and topics across regions.

What it is: an operator's tool (`isthmus lint`, `plan`, `apply`, `run`, `status`, `verify`), a Spark data source for
Azure Service Bus, and a durable namespace that speaks the same protocol where no cloud is at hand.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
