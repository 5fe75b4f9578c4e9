"""The environment of Python workers, made safe for concurrent queries.

What it is: a repair of Spark 4.3. All queries that use a Python data source found by its package share one Scala map of
environment variables, into which each of them writes when it starts Python processes, on its own thread and without a lock.
Two concurrent writes can break the map permanently ("Illegal size 5 of collection, expected 6"): from then on no
task of any query can be serialised ("Task not serializable"), until the process ends. Here a concurrent map replaces it.

Spark also sends the driver's own PYTHONPATH and the folders of its Spark to the workers of every machine. Executors on other machines have
their own paths, so these are removed there. What it is not: a change of the other variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["make_shareable"]

_FIELD = "envVars"
_PYTHON_PATH = "PYTHONPATH"


def make_shareable(spark: SparkSession, data_source: str, *, is_remote: bool = False) -> None:
    """Give the data source's workers a map of environment variables that is safe for threads; before any query starts.

    Args:
        spark: the session.
        data_source: its short name. No effect if Spark does not find it.
        is_remote: whether executors run on other machines.
    """
    virtual_machine, session = spark._jvm, spark._jsparkSession
    assert virtual_machine is not None
    manager = session.sessionState().dataSourceManager()
    if not manager.dataSourceExists(data_source):
        return
    function = manager.lookupDataSource(data_source).dataSourceCls()
    field = function.getClass().getDeclaredField(_FIELD)
    field.setAccessible(True)
    variables = virtual_machine.java.util.concurrent.ConcurrentHashMap(field.get(function))
    if is_remote:
        variables.remove(_PYTHON_PATH)
    field.set(function, variables)
