"""Log records that are one line each, whatever clients send.

What it is: a filter that writes line ends and other control characters as escapes: reasons of refusals contain addresses and
paths as clients wrote them. What it is not: a limit for the number of lines (`log_sample`).

Invariants:
    I1. No client can write a line of its own into the log.
    I2. Tracebacks keep their lines.
"""

from __future__ import annotations

import logging
import re

__all__ = ["LogLineFilter"]

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


class LogLineFilter(logging.Filter):
    """A filter for handlers."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the handler reports it
            return True
        if _CONTROL.search(text) is not None:
            record.msg, record.args = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text), None
        return True
