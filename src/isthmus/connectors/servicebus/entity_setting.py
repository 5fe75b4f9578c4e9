"""Settings of entities in an operator's notation: `lock_duration=1m`.

What it is: the settings that each kind of entity has, by the names of azure-servicebus's administration client, which are those of
the namespace's file (docs/reference/namespace-file.md), and their values from and to text. What it is not: the defaults and
limits; the namespace has those.

Invariants:
    I1. A name that a kind of entity does not have is refused with the nearest one; nothing is omitted silently.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from isthmus.errors import InvalidArgumentError
from isthmus.topology.file.document import suggest
from isthmus.topology.file.duration import INFINITE_MS, format_ms, parse_ms

__all__ = ["SETTINGS", "parse_settings", "shown"]

_RECEIVED = (
    "lock_duration",
    "max_delivery_count",
    "requires_session",
    "dead_lettering_on_message_expiration",
    "forward_to",
    "forward_dead_lettered_messages_to",
)
_SENT = (
    "max_size_in_megabytes",
    "max_message_size_in_kilobytes",
    "requires_duplicate_detection",
    "duplicate_detection_history_time_window",
    "enable_partitioning",
    "enable_express",
)
_ALL = ("default_message_time_to_live", "auto_delete_on_idle", "enable_batched_operations", "status", "user_metadata")

SETTINGS: dict[str, tuple[str, ...]] = {
    "queue": (*_RECEIVED, *_SENT, *_ALL),
    "topic": (*_SENT, "support_ordering", *_ALL),
    "subscription": (*_RECEIVED, "dead_lettering_on_filter_evaluation_exceptions", *_ALL),
}
"""The settings of each kind of entity."""

_DURATIONS = {
    "lock_duration",
    "default_message_time_to_live",
    "duplicate_detection_history_time_window",
    "auto_delete_on_idle",
}
_NUMBERS = {"max_delivery_count", "max_size_in_megabytes", "max_message_size_in_kilobytes"}
_TEXTS = {"forward_to", "forward_dead_lettered_messages_to", "user_metadata"}
_STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_DIGITS = 20
_ENDLESS = "P10675199DT2H48M5.4775807S"


def parse_settings(kind: str, written: Iterable[str]) -> dict[str, Any]:
    """Settings by name, with values of the administration client's types.

    Args:
        kind: `queue`, `topic` or `subscription`.
        written: each `name=value`.

    Raises:
        InvalidArgumentError: a setting is unknown, is given twice, or has an invalid value.
    """
    found: dict[str, Any] = {}
    for each in written:
        name, equals, text = each.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not equals:
            raise InvalidArgumentError(f"{each!r} is not a setting; write NAME=VALUE, e.g. max_delivery_count=5")
        if name not in SETTINGS[kind]:
            raise InvalidArgumentError(f"a {kind} has no setting {name!r}; {suggest(name, list(SETTINGS[kind]))}")
        if name in found:
            raise InvalidArgumentError(f"setting {name} appears twice; write it once")
        found[name] = _parse(name, text.strip())
    return found


def _parse(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text or None
    if name in _DURATIONS:
        return _parse_duration(name, text)
    if name in _NUMBERS:
        if not (text.isascii() and text.isdecimal() and len(text) < _DIGITS):
            raise InvalidArgumentError(f"{name} is a number; {text!r} is not")
        return int(text)
    if name == "status":
        known = {status.lower(): status for status in _STATUSES}
        if text.lower() not in known:
            raise InvalidArgumentError(f"status is {', '.join(_STATUSES)}; {text!r} is none of them")
        return known[text.lower()]
    if text.lower() not in _FLAGS:
        raise InvalidArgumentError(f"{name} is true or false; {text!r} is neither")
    return _FLAGS[text.lower()]


def _parse_duration(name: str, text: str) -> timedelta | str:
    if text.lower() == "infinite":
        return _ENDLESS
    try:
        length_ms = parse_ms(text)
    except ValueError:
        raise InvalidArgumentError(
            f"{name} is a duration, e.g. 30s, 10m, 1h30m, infinite; {text!r} is not one"
        ) from None
    return _ENDLESS if length_ms >= INFINITE_MS else timedelta(milliseconds=length_ms)


def shown(value: Any) -> str:
    """A setting's value in an operator's notation."""
    if isinstance(value, timedelta):
        return format_ms(int(value / timedelta(milliseconds=1)))
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "value", value))
