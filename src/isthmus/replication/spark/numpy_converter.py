"""PySpark's conversion of numpy values for Java, used only if numpy is loaded.

What it is: a repair of Spark 4.3. At the first call into Java PySpark queries its two converters of numpy values about the
argument, and these load `pyspark.testing`, with pandas, Arrow and numpy, to check whether numpy is installed. The driver of a run uses
none of them. What it is not: a change of conversions: a value cannot be numpy's before numpy is loaded.

Invariants:
    I1. If numpy is loaded, a converter answers as PySpark's own does.
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
    """Replace PySpark's own converters of numpy values. No error if they are replaced already."""
    converters = protocol.INPUT_CONVERTER
    for at, converter in enumerate(converters):
        if isinstance(converter, NumpyScalarConverter | NumpyArrayConverter):
            converters[at] = NumpyConverter(converter)
