"""Spark's lookup of data sources, run while its virtual machine starts.

What it is: Spark's work before its first query: it searches packages `pyspark_*` with a `DefaultSource`. Spark starts a Python process for
this once its virtual machine runs; here that process is started in parallel with the virtual machine, which then gets the result. What it is
not: another lookup rule. With an unknown release of Spark the result is not passed on, and Spark runs its own lookup.
Specification: Spark documentation, "Python Data Source API" (automatic registration).

Invariants:
    I1. A session finds the same data sources as without this.
    I2. The driver imports none of the packages: their imports would stay in its memory.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataSourceLookup"]

log = logging.getLogger(__name__)
_PREFIX = "pyspark_"
_SETTER = "dataSourceBuilders_$eq"
_SECONDS = 60.0


class DataSourceLookup:
    """One lookup, in a separate process.

    Args:
        python: the interpreter of Spark's workers.
    """

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "isthmus.replication.spark.data_source_lookup"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def close(self) -> None:
        """Ends the process if its result is not needed."""
        self._process.kill()
        self._process.communicate()

    def pass_on(self, session: SparkSession) -> bool:
        """Passes the result to the virtual machine, unless that has run its own lookup; before the first query. Returns whether it was accepted."""
        try:
            output, _ = self._process.communicate(timeout=_SECONDS)
            return _pass_on(session._jvm, {name: bytes.fromhex(text) for name, text in json.loads(output).items()})
        except Exception as error:  # noqa: BLE001 - a package, or this release of Spark, may differ
            log.debug("Spark looks up data sources itself: %s", error)
            self.close()
            return False


def _pass_on(virtual_machine: Any, found: dict[str, bytes]) -> bool:
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


def _look() -> dict[str, str]:
    """Names and pickled classes, in the form of Spark's own lookup."""
    from pyspark.sql.datasource import DataSource
    from pyspark.worker_util import pickleSer

    found = {}
    for module in iter_modules():
        if module.name.startswith(_PREFIX):
            source = getattr(import_module(module.name), "DefaultSource", None)
            if isinstance(source, type) and issubclass(source, DataSource):
                found[source.name()] = pickleSer.dumps(source).hex()  # type: ignore[no-untyped-call]
    return found


def _main() -> None:
    """Writes the result as one JSON object; output of packages goes elsewhere."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        json.dump(_look(), answer)


if __name__ == "__main__":
    _main()
