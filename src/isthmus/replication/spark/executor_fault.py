"""The fault of an executor, in one sentence.

What it is: pure; Spark's long report in, a sentence with the correction out. What it is not: the check that finds it early
(`isthmus.replication.spark.executor_check`).

The texts are those of Spark 4.3: `PythonWorkerFactory` if a worker cannot be started, `pyspark.worker_util.check_python_version`,
and Python's own.
"""

from __future__ import annotations

import re

__all__ = ["executor_fault"]

_NO_MODULE = re.compile(r"No module named '?\"?(?P<module>isthmus|pyspark_isthmus|pyarrow|pyspark|numpy)\b")
_NO_PROGRAM = re.compile(
    r'Cannot run program "(?P<program>[^"]+)"(?: \(in directory "[^"]*"\))?: (?:error=\d+, )?(?P<why>[^\n]+)'
)
_VERSION = re.compile(
    r"Python in worker has different version:? \(?(?P<worker>[^\s)]+)\)? than that in driver:? \(?(?P<driver>[^\s),]+)\)?"
)
_PROGRAM = re.compile(r"Error from python worker:\s+(?P<python>/[^\s:]+): ")
_HOST = re.compile(r"\((?P<host>[^\s()]+) executor (?P<executor>\w+)\)")
_SETTING = "spark: {settings: {spark.pyspark.python: PATH}}"


def executor_fault(text: str, version: str, python: str = "") -> str:
    """The sentence; empty if the report has none of these faults.

    Args:
        text: Spark's report of a failed job or query.
        version: version of isthmus at the driver.
        python: the interpreter that executors were configured to start; empty if unknown. Spark's report names the one that actually ran, which
            differs if the path is that of a script or a link.
    """
    host = match["host"] if (match := _HOST.search(text)) else ""
    where = f"the executor on {host}" if host else "an executor"
    started = python or (match["python"] if (match := _PROGRAM.search(text)) else "")
    python = f"its Python {started}" if started else "its Python"
    if match := _NO_MODULE.search(text):
        module = match["module"]
        if module in ("isthmus", "pyspark_isthmus"):
            return (
                f"{where} has no isthmus in {python}: install isthmus {version} there, or name an interpreter that has it in "
                f"{_SETTING}"
            )
        return f"{where} has no {module} in {python}: install isthmus {version} there with its extra: pip install 'isthmus[spark]'"
    if match := _NO_PROGRAM.search(text):
        return (
            f"{where} cannot start the Python {match['program']} ({match['why'].strip()}): install Python and isthmus {version} under that "
            f"path there, or name the interpreter in {_SETTING}"
        )
    if match := _VERSION.search(text):
        return (
            f"{where} has Python {match['worker']} and the driver {match['driver']}: install the same minor version of Python on both, or "
            f"name its interpreter in {_SETTING}"
        )
    return ""
