"""What the conformance suite does not ask of a pair of systems, each with the reason: the one table of all pairs.

What it is: `reason`, for a pair and a scenario. What it is not: a way to leave out what fails.
"""

from __future__ import annotations

from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario import SCENARIOS

__all__ = ["WAIVERS", "reason"]

_SCRIPT = "what a real system says cannot be scripted, nor its account of each message be looked into"
_LOCKS = "a log locks nothing: what was delivered is the reader's until another opens"
# (kind of the source, kind of the target, ability or scenario): why it does not apply. An empty kind stands for any.
WAIVERS: dict[tuple[str, str, str], str] = {
    ("queue", "", Ability.RESTARTS.value): "the memory system has no server",
    ("log", "", Ability.RESTARTS.value): "the memory system has no server",
    ("log", "", "locks_are_renewed_while_the_target_is_slow"): _LOCKS,
    ("log", "", "locks_that_end_all_the_same"): _LOCKS,
    ("log", "", "locks_are_kept_while_the_target_says_nothing"): _LOCKS,
    ("servicebus", "", Ability.SCRIPT.value): _SCRIPT,
    ("kafka", "", Ability.SCRIPT.value): _SCRIPT,
    ("kafka", "", Ability.LOCKS.value): _LOCKS,
    ("kafka", "", Ability.SKEWS.value): "no record of a log expires by its own time to live",
    (
        "",
        "kafka",
        Ability.REFUSES.value,
    ): "a broker refuses single records only, or is away: min.insync.replicas counts no more "
    "than the replicas there are",
    ("", "kafka", Ability.DEDUPLICATES.value): "a topic does not suppress duplicates of another producer",
}


def reason(source: str, target: str, scenario: str) -> str:
    """Why a pair is not put through a scenario; empty where it is."""
    what = [scenario, *(each.value for each in sorted(SCENARIOS[scenario].needs, key=lambda each: each.value))]
    found = (WAIVERS.get((a, b, each)) for each in what for a in (source, "") for b in (target, ""))
    return next(filter(None, found), "")
