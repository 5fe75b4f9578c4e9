"""A minimal prototype of the bridge for comparison: the cost of the product's features.

What it is: a runner for a folder with a `bench.py` that takes a number of messages and prints a line `RATE n/s` and a
line `total x us/msg`. The prototype is not part of the project; it is measured only where its folder is given.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from isthmus.errors import InvalidArgumentError, IsthmusError

__all__ = ["measure_spike"]

_OPTIONS = ("settle=loop", "bb=262144", "window=16000")
_TIMEOUT_SECONDS = 300


def measure_spike(folder: Path, messages: int) -> dict[str, float]:
    """Rate and CPU time per message of the prototype in `folder`.

    Raises:
        InvalidArgumentError: if the folder holds no prototype.
        IsthmusError: if it fails, with the end of its output.
    """
    program = folder / "bench.py"
    if not program.exists():
        raise InvalidArgumentError(f"{folder} holds no bench.py")
    answer = subprocess.run(
        [sys.executable, str(program), str(messages), *_OPTIONS],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    rate = re.search(r"RATE (\d+)/s", answer.stdout)
    total = re.search(r"total +([\d.]+) us/msg", answer.stdout)
    if rate is None or total is None:
        raise IsthmusError(f"the prototype failed: {(answer.stdout + answer.stderr)[-1000:]}")
    return {"messages_per_second": float(rate[1]), "cpu_us_per_message": float(total[1])}
