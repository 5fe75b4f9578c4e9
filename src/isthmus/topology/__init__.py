"""The federation file: text → model → lint → plan, all pure.

`read` returns the `Federation` that a text declares, or raises with every fault at once (`lint` only lists them); `routes` returns the
routes of its tasks; `wanted` the entities that must exist at the namespaces; `plan` the changes that create them.

The names are imported when they are first used: Spark's workers need the syntax of references from here, and neither YAML
nor the rules language.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.topology.linter import lint, read
    from isthmus.topology.model import Endpoint, Federation, NamespaceRef, Route, RouteOptions, Task
    from isthmus.topology.planning.change import Change, Plan
    from isthmus.topology.planning.planner import plan
    from isthmus.topology.planning.wanted import wanted, wanted_topics
    from isthmus.topology.route import routes
    from isthmus.topology.state import (
        EntityState,
        NamespaceState,
        QueueState,
        RuleState,
        SubscriptionState,
        TopicState,
        WantedState,
    )

__all__ = [
    "Change",
    "Endpoint",
    "EntityState",
    "Federation",
    "NamespaceRef",
    "NamespaceState",
    "Plan",
    "QueueState",
    "Route",
    "RouteOptions",
    "RuleState",
    "SubscriptionState",
    "Task",
    "TopicState",
    "WantedState",
    "lint",
    "plan",
    "read",
    "routes",
    "wanted",
    "wanted_topics",
]

_MODULES = {
    "planning.change": ("Change", "Plan"),
    "linter": ("lint", "read"),
    "model": ("Endpoint", "Federation", "NamespaceRef", "Route", "RouteOptions", "Task"),
    "planning.planner": ("plan",),
    "planning.wanted": ("wanted", "wanted_topics"),
    "route": ("routes",),
    "state": (
        "EntityState",
        "NamespaceState",
        "QueueState",
        "RuleState",
        "SubscriptionState",
        "TopicState",
        "WantedState",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"isthmus.topology.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
