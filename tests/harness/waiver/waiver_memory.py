"""What the memory system is not asked: its kinds `queue` and `log`."""

from __future__ import annotations

from isthmus.testing.bridge.pair import Ability

_LOCKS = "a log locks nothing: what was delivered is the reader's until another opens"
WAIVERS = {
    ("queue", "", Ability.RESTARTS.value): "the memory system has no server",
    ("log", "", Ability.RESTARTS.value): "the memory system has no server",
    ("log", "", "locks_are_renewed_while_the_target_is_slow"): _LOCKS,
    ("log", "", "locks_that_end_all_the_same"): _LOCKS,
    ("log", "", "locks_are_kept_while_the_target_says_nothing"): _LOCKS,
}
