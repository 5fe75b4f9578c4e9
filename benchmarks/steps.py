"""What each step costs: microseconds of one processor for a message.

Run: python benchmarks/steps.py [--messages 20000] [--json]. No Spark, no sockets: the steps as the sink applies them to Arrow batches.
The first line is the stage without any step, which a route without steps does not have.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from isthmus.amqp import section
from isthmus.bridge.spark.row import batch_of
from isthmus.replication.step.chain.row_stage import RowStage
from isthmus.topology.step import STEPS, StepDeclaration

BATCH_ROWS = 500
REPEATS = 5


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = {
            name: round(_microseconds(chain, given.messages), 1) for name, chain in chains(Path(folder)).items()
        }
    if given.json:
        print(json.dumps({"microseconds_per_message": measured}))
    else:
        for name, cost in measured.items():
            print(f"{cost:8.1f} us  {name}")
    return 0


def chains(folder: Path) -> dict[str, list[str]]:
    """Chains of steps by name, with their files in a folder."""
    schema, data, key = folder / "s.json", folder / "airports.csv", folder / "key"
    schema.write_text(
        json.dumps(
            {
                "type": "object",
                "required": ["carrier", "flight"],
                "properties": {
                    "carrier": {"type": "string", "pattern": "^[A-Z0-9]{2}$"},
                    "flight": {"type": "integer"},
                },
            }
        )
    )
    data.write_text("faa,name,lat\n" + "".join(f"A{number},Airport {number},{number}.5\n" for number in range(1500)))
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    validate = _step("validate", schema=str(schema))
    enrich = _step("enrich", **{"from": str(data), "on": "dest = faa", "columns": ["name", "lat"]})
    encrypt = _step("encrypt", key=f"file:{key}")
    return {
        "nothing": [],
        "validate": [validate],
        "filter": [_step("filter", where="carrier = 'UA'")],
        "set": [_step("set", action="SET priority = 'high'")],
        "enrich": [enrich],
        "map": [_step("map", fields={"who": "carrier", "to.faa": "dest"})],
        "reduce": [_step("reduce", remove=["tailnum"])],
        "normalise json to xml": [_step("normalise", **{"from": "json", "to": "xml"})],
        "encrypt (jwe)": [encrypt],
        "encrypt (aes-gcm)": [_step("encrypt", key=f"file:{key}", format="aes-gcm")],
        "validate, enrich, encrypt": [validate, enrich, encrypt],
    }


def _step(kind: str, **settings: Any) -> str:
    defaults = {each.name: each.default for each in STEPS[kind].spec.settings if each.default is not None}
    return StepDeclaration(kind, {**defaults, **settings}).to_text()


def _microseconds(chain: list[str], messages: int) -> float:
    """Of the fastest of some runs, so that other work on the machine does not count."""
    body = {"carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "A17", "tailnum": "N14228", "pad": "x" * 400}
    one = section.encode_message(
        json.dumps(body).encode(),
        properties={"message_id": "1", "content_type": "application/json"},
        application_properties={"carrier": "UA", "number": 1},
    )
    batch = batch_of([(1, range(BATCH_ROWS), [one] * BATCH_ROWS)])
    stage = RowStage(chain)
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        for _ in range(messages // BATCH_ROWS):
            stage.take(batch)
        best = min(best, time.process_time() - began)
    return best / (messages // BATCH_ROWS * BATCH_ROWS) * 1e6


if __name__ == "__main__":
    sys.exit(main())
