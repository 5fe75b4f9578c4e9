"""The end of Spark's Java process, in one sentence.

What it is: the error that replaces the exceptions of the bridge to Java when the other end has ended, and the context in
which it does so. What it is not: a recovery; a session cannot be started twice in one process, so the run ends, and
its service manager (systemd, an orchestrator) restarts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from isthmus.errors import IsthmusError

__all__ = ["SparkGoneError", "calling_spark"]


class SparkGoneError(IsthmusError):
    """Spark's Java process has ended."""

    code = "spark-gone"

    def text(self) -> str:
        return (
            "Spark's Java process has ended (killed, or out of memory?), and the run ends with it: start it again, nothing is "
            "lost; Spark's last messages may be in spark.log and spark-stderr.log in the state folder"
        )


@contextmanager
def calling_spark() -> Iterator[None]:
    """Within the context, a call to an ended Java process raises `SparkGoneError`.

    Raises:
        SparkGoneError: Spark's Java process has ended.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkGoneError from error
    except Py4JError as error:
        # Java ended within the call: Py4J reports that with an error without a trace. Errors that Java returns have one.
        if type(error) is not Py4JError or "Trace:" in str(error):
            raise
        raise SparkGoneError from error
