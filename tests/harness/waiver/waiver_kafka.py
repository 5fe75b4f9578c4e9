"""What Kafka is not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("kafka", "", Ability.SCRIPT.value): SCRIPT,
    ("kafka", "", Ability.LOCKS.value): "a log locks nothing: what was delivered is the reader's until another opens",
    ("kafka", "", Ability.SKEWS.value): "no record of a log expires by its own time to live",
    ("", "kafka", Ability.REFUSES.value): (
        "a broker refuses single records only, or is away: min.insync.replicas counts no more than the replicas there are"
    ),
    ("", "kafka", Ability.DEDUPLICATES.value): "a topic does not suppress duplicates of another producer",
}
