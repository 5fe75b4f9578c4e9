"""What queues that require sessions are not asked."""

from __future__ import annotations

from conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {("sessions", "", Ability.SCRIPT.value): SCRIPT}
