"""The federation file: text → model → lint → plan, all pure.

`read` gives the `Federation` that a text declares, or every fault at once; `routes` what its tasks compile to; `wanted`
what must stand at the namespaces; `plan` what to change there.
"""

from __future__ import annotations

from isthmus.topology.lint import lint, read
from isthmus.topology.model import Endpoint, Federation, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.plan import Change, Plan, plan, wanted, wanted_topics
from isthmus.topology.route import routes
from isthmus.topology.state import NamespaceState, RuleState, SubscriptionState, TopicState

__all__ = [
    "Change",
    "Endpoint",
    "Federation",
    "NamespaceRef",
    "NamespaceState",
    "Plan",
    "Route",
    "RouteOptions",
    "RuleState",
    "SubscriptionState",
    "Task",
    "TopicState",
    "lint",
    "plan",
    "read",
    "routes",
    "wanted",
    "wanted_topics",
]
