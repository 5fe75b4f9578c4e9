"""A connection over which nothing is in transit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

__all__ = ["STILL"]

STILL: Any = SimpleNamespace(queued_bytes=0, arrived_bytes=0)
