"""The position in a partition at which a receiver begins.

What it is: the selector expression of a receiver's filter, parsed into a position. What it is not: the search for that
position (`Partition.locate`). Spec: docs/explanation/protocol.md, Event Hubs (`apache.org:selector-filter:string`).

The grammar is one comparison, as all SDKs write it::

    amqp.annotation.x-opt-offset > '-1'                   the value quoted or not; > or >=
    amqp.annotation.x-opt-offset > '@latest'
    amqp.annotation.x-opt-sequence-number >= '17'
    amqp.annotation.x-opt-enqueued-time > '1700000000000'  ms since the epoch
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from isthmus.errors import InvalidArgumentError

__all__ = ["Position", "Selector", "parse_selector"]

_EXPRESSION = re.compile(
    r"\s*amqp\.annotation\.(x-opt-[a-z-]+)\s*(>=?)\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s'\"]+))\s*", re.IGNORECASE
)
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)


class Position(Enum):
    """The property that a selector compares."""

    START = "start"
    LATEST = "latest"
    OFFSET = "x-opt-offset"
    SEQUENCE = "x-opt-sequence-number"
    ENQUEUED_TIME = "x-opt-enqueued-time"


@dataclass(frozen=True, slots=True)
class Selector:
    """A position.

    Attributes:
        value: offset, sequence number, or wall ms.
        inclusive: whether an event at the value itself is included.
    """

    position: Position = Position.START
    value: int = 0
    inclusive: bool = False


def parse_selector(expression: str) -> Selector:
    """Parse a selector.

    Raises:
        InvalidArgumentError: event hubs do not support it.
    """
    found = _EXPRESSION.fullmatch(expression)
    if found is None:
        raise InvalidArgumentError(
            f"The selector '{expression[:200]}' is not known; write amqp.annotation.x-opt-offset > '…', or "
            "x-opt-sequence-number or x-opt-enqueued-time, with > or >=."
        )
    name, operator, *values = found.groups()
    value = next(each for each in values if each is not None)
    positions = (Position.OFFSET, Position.SEQUENCE, Position.ENQUEUED_TIME)
    position = next((each for each in positions if each.value == name.lower()), None)
    if position is None:
        raise InvalidArgumentError(f"The annotation '{name[:64]}' is not a start position of an event hub's receiver.")
    if value.lower() == "@latest":
        return Selector(Position.LATEST)
    if not _NUMBER.fullmatch(value):
        raise InvalidArgumentError(f"The value '{value[:64]}' of {name} is not a whole number.")
    number = int(value)
    if number < 0:
        return Selector(Position.START)
    return Selector(position, number, operator == ">=")
