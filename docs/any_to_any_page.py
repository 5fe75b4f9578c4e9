"""The page of what moves from every kind of system to every kind, made of what `make soak` has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["any_to_any_page"]

RECORD = Path(__file__).parents[1] / "benchmarks" / "results" / "any-to-any.json"
HEAD = """\
# From every system to every system

<!-- Written by `make docs` from the record of `make soak`; edits are lost. -->

Each kind of source sends to each kind of target, over the same engine that `isthmus run` uses. The servers are real where one can be run on a machine; routes of
one kind of source run side by side. Each message has a body of bytes, five properties and twelve application properties of as many types of AMQP 1.0.

A cell is **lost / second copies / out of order**, of {count:,} messages.

- Lost has to be 0 everywhere. What arrived is read at the target by another client than the route's.
- A dash stands where no order is promised: Queue Storage and Event Grid keep none, as source or as target. Kafka and Event Hubs keep it within a partition; the sources
  have two.
- Every property and body that is not listed under [types](#types) arrived with the value and the type that was sent.
"""
SYSTEMS = """\
## The systems

| kind | what was run |
| --- | --- |
| `servicebus` | a namespace of isthmus; queues |
| `eventhubs` | a namespace of isthmus; event hubs |
| `kafka` | Apache Kafka, one broker |
| `rabbitmq` | RabbitMQ of Debian 12; quorum and classic queues |
| `rabbitmq-streams` | the same RabbitMQ; streams, which are read only |
| `amqp` | Apache ActiveMQ Artemis; queues |
| `queuestorage` | Azurite |
| `eventgrid` | a server written from the vendor's public contract, which has no emulator |
| `http` | as a target a receiver in a process of its own; as a source the listener of isthmus |

IoT Hub is not in the table: its device-to-cloud messages are read as those of Event Hubs, and a queue to a device holds 50 messages.
"""


def any_to_any_page() -> str:
    """The page."""
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    calm, killed = record.get("calm", {}), record.get("killed", {})
    lines = [HEAD.format(count=_sent(calm)), "## Without faults", "", *_table(calm), ""]
    if killed:
        lines += [
            "## With every server killed",
            "",
            (
                f"{_sent(killed):,} messages for each route, at 30 a second. When 60 have arrived everywhere, the server of the source is killed with -9 and started again; then those of "
                "all targets are, together. Whether a second copy stands depends on the target: a namespace of isthmus drops it where the route gives copies an origin, as routes "
                "of a federation do and these do not. A listener is part of the route's reader and is not killed here."
            ),
            "",
            *_table(killed),
            "",
        ]
    lines += ["## Types", "", *_types(record), "", SYSTEMS, "## The runs", ""]
    lines += ["| source | without faults at (UTC), commit | with kills at (UTC), commit |", "| --- | --- | --- |"]
    for source in dict.fromkeys((*calm, *killed)):
        runs = (
            f"{reported['at']}, {reported['commit']}" if reported else "-"
            for reported in (calm.get(source), killed.get(source))
        )
        lines.append(f"| {source} | {' | '.join(runs)} |")
    lines += [
        "",
        (
            "`make soak` runs this (`tests/interop/conformance/test_any_to_any.py`) and records it in `benchmarks/results/any-to-any.json`; `make docs` makes this page of it. "
            "`make test` moves fewer messages between four of the kinds."
        ),
    ]
    return "\n".join(lines) + "\n"


def _sent(runs: Mapping[str, Any]) -> int:
    return max((int(cell["sent"]) for reported in runs.values() for cell in reported["cells"].values()), default=0)


def _table(runs: Mapping[str, Any]) -> list[str]:
    targets = list(dict.fromkeys(target for reported in runs.values() for target in reported["cells"]))
    lines = ["| from \\ to | " + " | ".join(targets) + " |", "| --- |" + " --- |" * len(targets)]
    for source, reported in runs.items():
        lines.append(f"| {source} | " + " | ".join(_cell(reported["cells"].get(target)) for target in targets) + " |")
    return lines


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "-"
    order = cell["out_of_order"] if cell["ordered"] else "–"
    text = f"{cell['lost']:,} / {cell['duplicated']:,} / {order}"
    return f"**{text}**" if cell["lost"] or (cell["ordered"] and cell["out_of_order"]) else text


def _types(record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    for runs in record.values():
        for source, reported in runs.items():
            for target, cell in reported["cells"].items():
                if cell["changed"]:
                    found[f"- {source} to {target}: {', '.join(f'`{name}`' for name in cell['changed'])}"] = None
    return list(found) or ["Everything arrived as it was sent, from every source at every target."]
