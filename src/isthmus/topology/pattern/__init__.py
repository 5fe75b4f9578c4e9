"""The patterns of tasks: one module each.

A new pattern is one module with a class that fulfils `Pattern`, and one line in `PATTERNS`; reader, lint, plan, schema,
reference page and starter files then include it.
"""

from __future__ import annotations

from isthmus.topology.pattern.active_passive import ActivePassive
from isthmus.topology.pattern.all_active import AllActive
from isthmus.topology.pattern.archive import Archive
from isthmus.topology.pattern.base import Pattern
from isthmus.topology.pattern.chain import Chain
from isthmus.topology.pattern.consolidate import Consolidate
from isthmus.topology.pattern.copy import Copy
from isthmus.topology.pattern.fan_out import FanOut
from isthmus.topology.pattern.move import Move
from isthmus.topology.pattern.queue_to_stream import QueueToStream
from isthmus.topology.pattern.spillover import Spillover
from isthmus.topology.pattern.split import Split
from isthmus.topology.pattern.stream_to_queue import StreamToQueue

__all__ = ["AS_STEPS", "LOG_PATTERNS", "PATTERNS", "PLAIN_PATTERNS", "TAKE_LOGS", "Pattern", "by_step"]

PATTERNS: dict[str, Pattern] = {
    pattern.spec.name: pattern
    for pattern in (
        AllActive(),
        ActivePassive(),
        Spillover(),
        Copy(),
        Move(),
        Consolidate(),
        FanOut(),
        Split(),
        Chain(),
        StreamToQueue(),
        QueueToStream(),
        Archive(),
    )
}

LOG_PATTERNS = ("stream-to-queue", "queue-to-stream")
"""Patterns between a log and a queue or topic."""

PLAIN_PATTERNS = ("copy", "move", "consolidate", "all-active")
"""Patterns whose source and target may be plain queues or topics, e.g. those of RabbitMQ."""

TAKE_LOGS = ("all-active", "copy", "move", "consolidate", "split", "archive")
"""Patterns whose target, or source and target, may be logs or plain queues; the others need subscriptions, rules and dead-letter queues everywhere."""

AS_STEPS = {
    "validation": "validate",
    "reduction": "reduce",
    "enrichment": "enrich",
    "normalisation": "normalise",
}
"""Names that users expect among the patterns, and the step with which a task of any pattern does the same."""


def by_step(name: str) -> tuple[str, str]:
    """The fault and the hint for one of `AS_STEPS` written as a pattern."""
    step = AS_STEPS[name]
    return (
        f"{name} is no pattern, but the step {step} of a task of any pattern",
        f"write pattern: copy, and {step} among its steps",
    )
