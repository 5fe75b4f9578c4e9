"""What Event Hubs are not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("eventhubs", "", Ability.SCRIPT.value): SCRIPT,
    (
        "eventhubs",
        "",
        Ability.LOCKS.value,
    ): "a log locks nothing: what was delivered is the reader's until another opens",
    ("eventhubs", "", Ability.SKEWS.value): "no event expires by its own time to live",
    ("", "eventhubs", Ability.DEDUPLICATES.value): "an event hub does not suppress duplicates",
}
