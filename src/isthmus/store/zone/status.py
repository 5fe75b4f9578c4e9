"""The status of one copy of a store, for health and metrics.

What it is: plain values. What it is not: the judgement, which `journal` makes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["COPIES", "MAJORITY", "ZoneState", "ZoneStatus"]

COPIES = 3
# Any two sets of so many copies have one in common.
MAJORITY = 2


class ZoneState(StrEnum):
    """Of one copy."""

    SERVING = "serving"
    JOINING = "joining"
    RESILVERING = "resilvering"
    DOWN = "down"


class ZoneStatus(NamedTuple):
    """The status of one copy.

    Attributes:
        zone: from 1 on, in the order in which the folders were named.
        state: `serving` counts to the majority; the others do not.
        reason: why it does not serve; empty where it does.
        lag_seconds: how long the disk has been busy with the oldest change that it has not confirmed.
        drops: how often it was taken out of service since the start.
        resilvers: how often it was brought back since the start.
    """

    zone: int
    state: ZoneState
    reason: str = ""
    lag_seconds: float = 0.0
    drops: int = 0
    resilvers: int = 0
