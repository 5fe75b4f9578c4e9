"""The patterns that a task can have: one module each.

A new pattern is one module with a class that fulfils `Pattern`, and one line in `PATTERNS`; reader, lint, plan, schema,
reference page and starter files know it then.
"""

from __future__ import annotations

from isthmus.topology.pattern.all_active import AllActive
from isthmus.topology.pattern.base import Pattern
from isthmus.topology.pattern.chain import Chain

__all__ = ["PATTERNS", "PLANNED", "Pattern"]

PATTERNS: dict[str, Pattern] = {pattern.spec.name: pattern for pattern in (AllActive(), Chain())}

PLANNED = (
    "active-passive",
    "spillover",
    "fan-out",
    "validation",
    "reduction",
    "enrichment",
    "stream-to-queue",
    "queue-to-stream",
    "consolidation",
    "normalisation",
    "splitting",
    "routing",
)
"""Patterns that are known by name and refused as not available yet."""
