"""What Queue Storage is not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

_LIMIT = "a message of Queue Storage has 64 KiB at most"
WAIVERS = {
    ("queuestorage", "", Ability.SCRIPT.value): SCRIPT,
    ("queuestorage", "", Ability.SKEWS.value): "Azurite takes its time from the machine",
    (
        "",
        "queuestorage",
        Ability.REFUSES.value,
    ): "a queue that is there takes messages; an account cannot be made to refuse them",
    ("", "queuestorage", Ability.DEDUPLICATES.value): "Queue Storage suppresses no duplicates",
    ("queuestorage", "", "large_messages"): _LIMIT,
    ("", "queuestorage", "large_messages"): _LIMIT,
    (
        "queuestorage",
        "",
        "a_message_that_is_too_large_for_the_target",
    ): "a message that a queue takes is too large for no target",
}
