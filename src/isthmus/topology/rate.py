"""The rate limit of a route, by the hour of the day.

What it is: the setting `rate`, its text and its value at a time of day. One text for the file, for the processes that carry a route,
and for people: ``100/s 08:00-18:00, 500/s``. The first part that applies at a time is used; if none applies there is no limit. Hours are in
UTC. What it is not: enforcing the limit (`isthmus.bridge.flow.rate_limit`).

Invariants:
    I1. `Rate.parse(rate.to_text()) == rate`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from isthmus.topology.file.document import Document
from isthmus.topology.file.setting import Kind, Setting, Spec

__all__ = ["DAY_SECONDS", "RATE", "RATE_PART", "Rate", "RatePart", "read_rate"]

DAY_SECONDS = 86_400
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}
_LIMIT = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*/\s*([smh])")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")
_PART = re.compile(r"(?P<limit>\S+)(?: (?P<start>\d\d:\d\d)-(?P<end>\d\d:\d\d))?")
_EXAMPLE = "500/s"

RATE_PART = Spec(
    "rate",
    "A limit and when it applies.",
    (
        Setting(
            name="from", kind=Kind.TEXT, description="Time of day in UTC from which it applies.", example='"08:00"'
        ),
        Setting(name="to", kind=Kind.TEXT, description="Time of day in UTC until which it applies.", example='"18:00"'),
        Setting(
            name="limit", kind=Kind.TEXT, required=True, description="The limit; `0/s` moves nothing.", example="100/s"
        ),
    ),
)

RATE = Setting(
    name="rate",
    kind=Kind.RATE,
    description='The rate limit of each route of the task: `500/s`, `6000/m` or `100000/h`; or a list of `{from: "08:00", to: "18:00", '
    "limit: 100/s}` with times of the day in UTC, of which the first one that applies is used; one without `from` and `to` always applies. `0/s` "
    "moves nothing. After a pause a route may send a burst of one second's messages. Default: no limit.",
    example=_EXAMPLE,
)


class RatePart(NamedTuple):
    """A limit for a part of the day.

    Attributes:
        limit: as written, e.g. `100/s`.
        start_seconds: start, in seconds of the day, in UTC.
        end_seconds: end, in seconds of the day; at or before the start: on the next day; equal: the whole day.
    """

    limit: str
    start_seconds: int = 0
    end_seconds: int = 0

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return _per_second(self.limit)

    @property
    def is_whole_day(self) -> bool:
        """Whether it always applies."""
        return self.start_seconds == self.end_seconds

    def applies(self, second: float) -> bool:
        """Whether it applies at a second of the day."""
        if self.start_seconds < self.end_seconds:
            return self.start_seconds <= second < self.end_seconds
        return self.is_whole_day or second >= self.start_seconds or second < self.end_seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate limits of a route.

    Attributes:
        parts: the first part that applies is used.
    """

    parts: tuple[RatePart, ...] = ()

    def at(self, wall_seconds: float) -> tuple[RatePart | None, float]:
        """The part that applies at a time, None for no limit, and for how many seconds it does; infinite: always."""
        second = wall_seconds % DAY_SECONDS
        bounds = sorted({bound % DAY_SECONDS for part in self.parts if not part.is_whole_day for bound in part[1:]})
        part = self._part(second)
        for bound in (*(each for each in bounds if each > second), *(each + DAY_SECONDS for each in bounds)):
            if self._part(bound % DAY_SECONDS) != part:
                return part, bound - second
        return part, math.inf

    def _part(self, second: float) -> RatePart | None:
        return next((part for part in self.parts if part.applies(second)), None)

    def to_text(self) -> str:
        """The rate as one line."""
        return ", ".join(map(_part_text, self.parts))

    @classmethod
    def parse(cls, text: str) -> Rate:
        """A rate from the text of `to_text`.

        Raises:
            ValueError: the text is no rate.
        """
        parts = []
        for each in filter(None, text.split(", ")):
            match = _PART.fullmatch(each)
            if match is None:
                raise ValueError(f"{each!r} is no rate")
            _per_second(match["limit"])
            start, end = (_second(match[name]) if match[name] else 0 for name in ("start", "end"))
            parts.append(RatePart(match["limit"], start, end))
        return cls(tuple(parts))


def read_rate(node: Any, document: Document) -> str:
    """The text of the rate that a task declares; empty if there is none, or it is faulty."""
    if node is None:
        return ""
    if isinstance(node, yaml.ScalarNode):
        limit = _limit(node, document)
        return Rate((RatePart(limit),)).to_text() if limit else ""
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        document.fault(document.place(node), "rate is neither a limit nor a list of limits", f"write rate: {_EXAMPLE}")
        return ""
    parts: list[RatePart] = []
    for item in node.value:
        part = _read_part(item, document)
        if part is not None and parts and any(each.is_whole_day for each in parts):
            document.fault(
                document.place(item), "this limit never applies: one before it always applies", "put it before that one"
            )
        parts += [part] if part is not None else []
    return Rate(tuple(parts)).to_text()


def _read_part(node: Any, document: Document) -> RatePart | None:
    before = len(document.faults)
    values = document.settings(node, RATE_PART, "rate")
    pairs = document.pairs(node, "rate") if isinstance(node, yaml.MappingNode) else {}
    limit = _limit(pairs["limit"][1], document) if "limit" in pairs else ""
    seconds = {name: _time(name, pairs[name][1], document) for name in ("from", "to") if name in pairs}
    if len(seconds) == 1:
        (only,) = seconds
        other = "to" if only == "from" else "from"
        document.fault(values.at(only), f"rate has {only} without {other}", f'write {other}: "18:00"')
    if len(document.faults) > before:
        return None
    if not seconds:
        return RatePart(limit)
    if seconds["from"] == seconds["to"]:
        document.fault(values.at("from"), "rate begins and ends at the same time", "write other times, or neither")
        return None
    return RatePart(limit, seconds["from"], seconds["to"])


def _limit(node: Any, document: Document) -> str:
    text = document.text(node).strip()
    if not _LIMIT.fullmatch(text):
        document.fault(
            document.place(node), "rate is no number of messages per second, minute or hour", f"write {_EXAMPLE}"
        )
        return ""
    return text.replace(" ", "")


def _time(name: str, node: Any, document: Document) -> int:
    """YAML reads 08:00 without quotes as text, and 18:00 as the number 1080; the document returns the text as written."""
    text = document.text(node).strip()
    if not _TIME.fullmatch(text):
        document.fault(document.place(node), f"{name} is no time of day", f'write {name}: "08:00"')
        return 0
    return _second(text) % DAY_SECONDS


def _per_second(limit: str) -> float:
    match = _LIMIT.fullmatch(limit)
    if match is None:
        raise ValueError(f"{limit!r} is no rate")
    return float(match[1]) / _UNIT_SECONDS[match[2]]


def _second(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 3600 + int(minute) * 60


def _clock(second: int) -> str:
    return f"{second // 3600:02d}:{second // 60 % 60:02d}"


def _part_text(part: RatePart) -> str:
    hours = "" if part.is_whole_day else f" {_clock(part.start_seconds)}-{_clock(part.end_seconds)}"
    return f"{part.limit}{hours}"
