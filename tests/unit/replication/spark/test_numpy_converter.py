"""What the driver's calls into Java load."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from py4j import protocol
from isthmus.replication.spark.numpy_converter import spare_numpy

spare_numpy()
spare_numpy()
assert not any(each.can_convert("text") for each in protocol.INPUT_CONVERTER[-1:] + protocol.INPUT_CONVERTER[:1])
print([name for name in ("numpy", "pandas", "pyarrow") if name in sys.modules])
import numpy as np
print([sum(each.can_convert(value) for each in protocol.INPUT_CONVERTER) > 0 for value in (np.int64(3), np.array([1, 2]))])
"""


def test_a_call_loads_no_numpy_and_numpy_values_are_converted_i1() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:2] == ["[]", "[True, True]"]
