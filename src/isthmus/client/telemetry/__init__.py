"""Counters for Prometheus and spans for OpenTelemetry, of every class of the client library.

What it is: `ClientMetrics`, `traced` and `processing`. Only this package needs the extra `telemetry`. See
docs/how-to/observe-the-client-library.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.client.telemetry.metric import ClientMetrics
    from isthmus.client.telemetry.span import processing, traced

__all__ = ["ClientMetrics", "processing", "traced"]

_MODULES = {
    "ClientMetrics": "isthmus.client.telemetry.metric",
    "processing": "isthmus.client.telemetry.span",
    "traced": "isthmus.client.telemetry.span",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("telemetry", f"isthmus.client.telemetry.{name}")
    return getattr(importlib.import_module(_MODULES[name]), name)
