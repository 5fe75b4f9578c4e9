"""The findings of `isthmus doctor` at a namespace.

What it is: a finding, and the pure verdicts on clocks, certificates and fill. What it is not: the requests
(`isthmus.supervisor.examination.doctor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

__all__ = ["Finding", "Verdict", "certificate_finding", "clock_finding", "fill_finding", "worst"]

# A token's validity is compared with the namespace's clock; Azure allows five minutes.
_SKEW_WARN_SECONDS = 30.0
_SKEW_FAULT_SECONDS = 300.0
_EXPIRY_WARN_DAYS = 21
_FILL_WARN = 0.8


class Verdict(IntEnum):
    """How bad a finding is."""

    OK = 0
    WARNING = 1
    UNKNOWN = 2
    FAULT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one test.

    Attributes:
        alias: the namespace's.
        subject: the test, e.g. `connect` or `listen orders`.
        verdict: how good or bad it is.
        text: the observation.
        hint: what to do; empty if nothing.
    """

    alias: str
    subject: str
    verdict: Verdict
    text: str
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values for `--json`."""
        return {**asdict(self), "verdict": self.verdict.name.lower()}


def worst(findings: Sequence[Finding]) -> Verdict:
    """The worst verdict of all."""
    return max((each.verdict for each in findings), default=Verdict.OK)


def clock_finding(alias: str, there: datetime, before: datetime, after: datetime) -> Finding:
    """The difference between two clocks, within the precision of an answer.

    Args:
        alias: the namespace's.
        there: the namespace's time in its answer, cut to whole seconds.
        before: this machine's time of the request.
        after: this machine's time of the answer.
    """
    ahead = (there - after).total_seconds()
    behind = (before - there).total_seconds() - 1.0
    skew = max(0.0, ahead, behind)
    if skew <= _SKEW_WARN_SECONDS:
        return Finding(alias=alias, subject="clock", verdict=Verdict.OK, text=f"agrees within {max(1.0, skew):.0f} s")
    which = "behind" if ahead > behind else "ahead of"
    return Finding(
        alias=alias,
        subject="clock",
        verdict=Verdict.FAULT if skew > _SKEW_FAULT_SECONDS else Verdict.WARNING,
        text=f"this machine is {skew:.0f} s {which} the namespace",
        hint="set the clock of this machine, e.g. by NTP: tokens are refused, and times to live are computed wrongly",
    )


def certificate_finding(alias: str, expires: datetime, now: datetime | None = None) -> Finding:
    """How long the namespace's TLS certificate is still valid."""
    days = (expires - (now or datetime.now(UTC))).days
    if days > _EXPIRY_WARN_DAYS:
        return Finding(alias=alias, subject="certificate", verdict=Verdict.OK, text=f"valid for {days} days")
    return Finding(
        alias=alias,
        subject="certificate",
        verdict=Verdict.WARNING,
        text=f"expires in {days} days, on {expires:%Y-%m-%d}",
        hint="the operator of the namespace renews it",
    )


def fill_finding(alias: str, entity: str, used_bytes: int, limit_bytes: int) -> Finding:
    """How full an entity is."""
    part = used_bytes / limit_bytes if limit_bytes else 0.0
    text = f"{part:.0%} of {limit_bytes / 2**30:g} GiB"
    if part < _FILL_WARN:
        return Finding(alias=alias, subject=f"size {entity}", verdict=Verdict.OK, text=text)
    return Finding(
        alias=alias,
        subject=f"size {entity}",
        verdict=Verdict.WARNING,
        text=text,
        hint="at 100 % publishers are refused: make sure that a receiver reads it, or raise its size",
    )
