"""PySpark's conversion of numpy values for Java, asked only where numpy is loaded.

What it is: a repair of Spark 4.3. At the first call into Java PySpark asks its two converters of numpy values whether they know the
argument, and these load `pyspark.testing`, with pandas, Arrow and numpy, to find out whether numpy is there. The driver of a run uses
none of them. What it is not: a change of what is converted: a value cannot be numpy's before numpy is loaded.

Invariants:
    I1. Where numpy is loaded, a converter answers as PySpark's own does.
"""

from __future__ import annotations

import sys
from typing import Any

from py4j import protocol
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

__all__ = ["NumpyConverter", "spare_numpy"]


class NumpyConverter:
    """One of PySpark's converters.

    Args:
        inner: PySpark's own.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def can_convert(self, value: object) -> bool:
        """Whether it converts the value."""
        return "numpy" in sys.modules and self._inner.can_convert(value)

    def convert(self, value: object, gateway_client: Any) -> Any:
        """The value for Java."""
        return self._inner.convert(value, gateway_client)


def spare_numpy() -> None:
    """Take the place of PySpark's own converters of numpy values. No error if that has been done."""
    converters = protocol.INPUT_CONVERTER
    for at, converter in enumerate(converters):
        if isinstance(converter, NumpyScalarConverter | NumpyArrayConverter):
            converters[at] = NumpyConverter(converter)
