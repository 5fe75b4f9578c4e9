"""The data sources that Spark finds by itself, found in this process.

What it is: what Spark does before its first query: it looks for packages `pyspark_*` with a `DefaultSource`. Spark starts a Python process for
it, once its virtual machine runs; here the driver looks, while the virtual machine starts, and tells it the result. What it is not: another
rule of what is found. Where anything is otherwise than in the releases of Spark that are known, nothing is told, and Spark looks itself.
Specification: Spark documentation, "Python Data Source API" (automatic registration).

Invariants:
    I1. What a session finds is what it would find without this.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.worker_util import pickleSer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataSourceLookup"]

log = logging.getLogger(__name__)
_PREFIX = "pyspark_"
_SETTER = "dataSourceBuilders_$eq"


class DataSourceLookup:
    """One lookup, in a thread of its own from the start."""

    def __init__(self) -> None:
        self._found: dict[str, bytes] = {}
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._look, name="data-source-lookup", daemon=True)
        self._thread.start()

    def tell(self, session: SparkSession) -> bool:
        """Gives the virtual machine what was found, unless it has looked itself; before the first query. Whether it was taken."""
        self._thread.join()
        if self._error is not None:
            log.debug("Spark looks for data sources itself: %s", self._error)
            return False
        try:
            return _tell(session._jvm, self._found)
        except Exception as error:  # noqa: BLE001 - whatever this release of Spark has otherwise
            log.debug("Spark looks for data sources itself: %s", error)
            return False

    def _look(self) -> None:
        try:
            for module in iter_modules():
                if module.name.startswith(_PREFIX):
                    found = getattr(import_module(module.name), "DefaultSource", None)
                    if isinstance(found, type) and issubclass(found, DataSource):
                        self._found[found.name()] = pickleSer.dumps(found)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - a package of anybody, which Spark then tells of
            self._error = error


def _tell(virtual_machine: Any, found: dict[str, bytes]) -> bool:
    sources = virtual_machine.org.apache.spark.sql.execution.datasources
    manager = _object(sources, "DataSourceManager")
    if manager.dataSourceBuilders().isDefined():
        return False
    utils = _object(virtual_machine.org.apache.spark.api.python, "PythonUtils")
    builders = virtual_machine.java.util.HashMap()
    for name, pickled in found.items():
        builders.put(name.lower(), sources.v2.python.UserDefinedPythonDataSource(utils.createPythonFunction(pickled)))
    getattr(manager, _SETTER)(virtual_machine.scala.Some(utils.toScalaMap(builders)))
    return True


def _object(package: Any, name: str) -> Any:
    """A Scala object, by Java's name of its one instance."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
