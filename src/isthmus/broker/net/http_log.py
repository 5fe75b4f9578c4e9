"""The log of the HTTP server.

What it is: the logger that aiohttp's server writes to, with a filter that reduces a client's error to one line.
What it is not: the log of administration requests (`isthmus.broker.admin.app`).

Invariants:
    I1. Bytes that are not HTTP cause one line without a traceback and without these bytes, which may contain a token.
    I2. A fault of the namespace keeps its traceback.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["http_log"]


def http_log() -> logging.Logger:
    """The logger to give to aiohttp's server."""
    log = logging.getLogger("isthmus.broker.http")
    if not log.filters:
        log.addFilter(_shorten)
    return log


def _shorten(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        peer = record.args[0] if isinstance(record.args, tuple) and record.args else None
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = "http refused: peer=%s status=400 reason=%s", (peer, type(error).__name__)
    return True
