"""What Event Grid is not asked."""

from __future__ import annotations

from harness.conformance.conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

WAIVERS = {
    ("eventgrid", "", Ability.SCRIPT.value): SCRIPT,
    ("eventgrid", "", Ability.SKEWS.value): "an event has no time to live of its own",
    ("", "eventgrid", Ability.DEDUPLICATES.value): "Event Grid suppresses no duplicates",
    (
        "eventgrid",
        "",
        "only_what_is_present_is_moved",
    ): "the data plane does not tell how many events wait, nor when one came",
    (
        "eventgrid",
        "servicebus",
        "a_message_that_is_too_large_for_the_target",
    ): "what is too large for a namespace is too large for an event",
}
