"""What Service Bus is not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {("servicebus", "", Ability.SCRIPT.value): SCRIPT}
