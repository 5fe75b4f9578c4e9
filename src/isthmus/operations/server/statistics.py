"""The namespace's statistics, read over HTTP, and back-ups.

What it is: the client's side of `isthmus.broker.operator_api`. What it is not: usable with Azure's Service Bus, which has
neither.
"""

from __future__ import annotations

import json
from typing import Any

from isthmus.operations.server.target import Target

__all__ = ["RATES", "ask_statistics", "rates"]

# Counter of the namespace → name of its rate per second.
RATES = {
    "in_total": "in_rate",
    "out_total": "out_rate",
    "settled_total": "settled_rate",
    "expired_total": "expired_rate",
    "dead_lettered_total": "dead_lettered_rate",
    "refused_total": "refused_rate",
}


def ask_statistics(target: Target) -> dict[str, Any]:
    """`namespace`, `entities` and `at` (epoch seconds).

    Raises:
        IsthmusError: no answer, or no right.
    """
    found: dict[str, Any] = json.loads(target.ask("GET", "/$isthmus/statistics"))
    return found


def rates(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The later statistics with rates per second since the earlier ones in each entity's row."""
    seconds = max(1e-3, after["at"] - before["at"])
    known = {row["entity"]: row for row in before["entities"]}
    rows = []
    for row in after["entities"]:
        old = known.get(row["entity"], {})
        # A counter that decreased has restarted: the namespace was restarted.
        made = {
            rate: round(
                max(0, row[counter] - (old.get(counter, 0) if old.get(counter, 0) <= row[counter] else 0)) / seconds, 3
            )
            for counter, rate in RATES.items()
        }
        rows.append({**row, **made})
    return {**after, "entities": rows, "seconds": round(seconds, 3)}
