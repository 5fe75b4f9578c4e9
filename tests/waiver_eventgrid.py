"""What Event Grid is not asked."""

from __future__ import annotations

from conformance_waiver import SCRIPT
from isthmus.testing.bridge.pair import Ability

_LIMIT = "an event of Event Grid has 1 MiB at most; a body of 1 MB in base64 is larger"
WAIVERS = {
    ("eventgrid", "", Ability.SCRIPT.value): SCRIPT,
    ("eventgrid", "", Ability.SKEWS.value): "an event has no time to live of its own",
    ("", "eventgrid", Ability.DEDUPLICATES.value): "Event Grid suppresses no duplicates",
    (
        "eventgrid",
        "",
        "only_what_is_present_is_moved",
    ): "the data plane does not tell how many events wait, nor when one came",
}
