"""The conformance scenarios of the shared engine, for any pair of systems.

What it is: `SCENARIOS`, by name. What it is not: a test; see tests/unit/bridge/test_conformance.py for how one is made of them.
"""

from __future__ import annotations

from isthmus.testing.bridge.scenario import away, content, driver, flow, kill, lease, loss, refusal
from isthmus.testing.bridge.scenario.registry import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "away", "content", "driver", "flow", "kill", "lease", "loss", "refusal"]
