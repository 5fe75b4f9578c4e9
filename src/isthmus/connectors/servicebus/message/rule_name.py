"""The property `RuleName`, which a broker's rules with actions add to their copies.

What it is: its removal from encoded application properties. What it is not: the other properties (`message_rewriter`).
Specification: OASIS AMQP 1.0 1.6.23 (maps).
"""

from __future__ import annotations

from isthmus.amqp.codec import WIDTH, value_end
from isthmus.message import name as names
from isthmus.message.provenance import encoded

__all__ = ["RULE_NAME", "without_rule_name"]

RULE_NAME = encoded(names.RULE_NAME)


def without_rule_name(b: bytes, start: int, end: int, count: int) -> tuple[bytes, int]:
    """The pairs of a map without `RuleName`, and the count of the rest; -1: a size is wrong. The scan ensures that the name is a
    key, and not within a value.
    """
    width = WIDTH
    at = start
    while at < end:
        if b[at] == 0xA1:
            value = at + 2 + b[at + 1]
            if b[at:value] == RULE_NAME:
                after = value_end(b, value)
                return (b[start:at] + b[after:end], count - 2) if after <= end else (b"", -1)
        else:
            value = value_end(b, at)
        size = width[b[value]]
        at = value + size if 0 < size < 254 else value + 2 + b[value + 1] if size == 0 else value_end(b, value)
    return b[start:end], count if at == end else -1
