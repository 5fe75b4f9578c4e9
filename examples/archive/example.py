"""After everything was moved: the tables themselves, as any reader of Parquet sees them."""

import json
import time
from typing import Any

import pyarrow.parquet as pq

from isthmus.demo.example.example import Example
from isthmus.errors import OperationTimeoutError

WAIT_SECONDS = 120.0


def after(example: Example) -> dict[str, Any]:
    limit = time.monotonic() + WAIT_SECONDS
    while (rows := _rows(example)) and len(rows) < example.sent:
        if time.monotonic() > limit:
            raise OperationTimeoutError(f"{len(rows)} of {example.sent} messages are in the tables")
        time.sleep(0.5)
    carriers = {json.loads(body).get("carrier") for body in rows}
    return {"rows": len(rows), "carriers": len(carriers)}


def _rows(example: Example) -> list[bytes]:
    """The bodies in all tables."""
    found: list[bytes] = []
    for file in sorted((example.folder / "lake").glob("*/date=*/hour=*/*.parquet")):
        found += pq.ParquetFile(file).read(columns=["body"]).column("body").to_pylist()
    return found
