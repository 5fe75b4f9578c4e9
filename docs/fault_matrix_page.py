"""The page of the fault matrix, made of what `make soak` has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["fault_matrix_page"]

RECORD = Path(__file__).parents[1] / "benchmarks" / "results" / "fault-matrix.json"
HEAD = """\
# The fault matrix

<!-- Written by `make docs` from the record of `make soak`; edits are lost. -->

What happens to the messages of each [pattern](../reference/federation-file.md) when something fails. One run carries all patterns between
three embedded namespaces, `ewr` (source), `jfk` (target) and `lga`, each 60 ms away, and for streams a broker of Apache Kafka, `hub`, a node of RabbitMQ, `log`, and a namespace of event
hubs, `events`. A dash stands where a pattern was added since the fault was played. While publishers send and messages are under way a fault
strikes; it is mended, and everything is waited for. Then two independent counts are made, of which the worse is told: `isthmus verify`, and the
publishers' own numbers of what was acknowledged to them against what stands at the targets.

A cell is **lost / second copies / out of order**, of all messages that were published to the pattern during the fault. A message that still
waited after five minutes without any progress would count as lost.

- Lost has to be 0 everywhere.
- Second copies have to be 0 with detection by origin, which is the default at namespaces of isthmus. Rows with `duplicates: allow` show how many copies a fault makes
  when nothing drops them.
- Out of order has to be 0: tasks have `ordering: ordered`, whose promise is per publisher and entity, where nothing else is said; those
  of sessions have `ordering: session`, in which each session has an order of its own, and one has `ordering: strict`. Of `spillover` the order is judged from where its route reads: a
  consumer whose namespace is killed gets its messages in another order.
- The chain is moved by its namespace alone; what is killed elsewhere does not touch it.
"""


def fault_matrix_page() -> str:
    """The page."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    names = list(dict.fromkeys(name for fault in record.values() for name in fault["cells"]))
    lines = [HEAD, "## The matrix", ""]
    lines += ["| | " + " | ".join(record) + " |", "| --- |" + " --- |" * len(record)]
    for name in names:
        cells = (_cell(fault["cells"].get(name)) for fault in record.values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## The faults",
        "",
        (
            "Published: acknowledged messages of all patterns. Under way: of these, what stood before the routes when the fault struck. Set aside: what steps dead-lettered "
            "at the source, because it was published to be refused."
        ),
        "",
        "| fault | what happens | carried by | published | under way | set aside | run at (UTC), commit |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for fault, reported in record.items():
        sums = (_sum(reported, kind) for kind in ("published", "unsettled", "set_aside"))
        counts = " | ".join(f"{each:,}" for each in sums)
        lines.append(
            f"| {fault} | {reported['told']} | {reported['carrier']} | {counts} | {reported['at']}, {reported['commit']} |"
        )
    lines += [
        "",
        (
            "`make soak` runs the matrix (`tests/fault/route/test_fault_matrix.py`) and records it in `benchmarks/results/fault-matrix.json`; `make docs` makes this page of it. "
            "`make test` plays one pattern under two faults. Azure Service Bus is not in it."
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    text = f"{cell['lost'] + cell['stuck']} / {cell['duplicated']} / {cell['out_of_order']}"
    return text if _is_good(cell) else f"**{text}**"


def _is_good(cell: Mapping[str, Any]) -> bool:
    wrong = cell["lost"] + cell["stuck"]
    wrong += cell["duplicated"] * cell["detects"] + cell["out_of_order"] * cell["ordered"]
    return not wrong


def _sum(reported: Mapping[str, Any], kind: str) -> int:
    return sum(cell[kind] for cell in reported["cells"].values())
