"""A message system in memory with scripted faults, and a join of reader and sink without Spark.

What it is: the kit for tests of the shared engine and of connectors, also an application's own.

    system = System()
    system.queue("a")
    system.queue("b")
    system.publish("a", 0, 10)
    with Join(system, [route_spec("r", "a", "b")]) as join:
        join.wait_until(lambda: system.entity("a").is_empty)

What it is not: part of the product.
"""

from __future__ import annotations

from isthmus.testing.bridge.connector import MemoryConnector, MemorySourcePool, MemoryTargetPool
from isthmus.testing.bridge.entity import DeadLetter, Entity, Stored
from isthmus.testing.bridge.fault import Faults, Killed, Step
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.source import MemorySource
from isthmus.testing.bridge.system import System
from isthmus.testing.bridge.target import MemoryTarget

__all__ = [
    "DeadLetter",
    "Entity",
    "Faults",
    "Killed",
    "MemoryConnector",
    "MemorySource",
    "MemorySourcePool",
    "MemoryTarget",
    "MemoryTargetPool",
    "Step",
    "Stored",
    "System",
    "key_of",
    "message",
]
