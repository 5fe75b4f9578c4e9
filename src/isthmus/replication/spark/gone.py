"""The end of Spark's Java process, told in one sentence.

What it is: the error that replaces whatever the bridge to Java raises when there is nobody at its other end, and the block in
which it does so. What it is not: a way back; a session cannot be started twice in one process, so that the run ends, and
whoever keeps it (systemd, an orchestrator) starts it again.
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
            "lost; Spark's last words may be in spark.log and spark-stderr.log in the state folder"
        )


@contextmanager
def calling_spark() -> Iterator[None]:
    """Within it, a call of a Java process that has ended raises `SparkGoneError`.

    Raises:
        SparkGoneError: Spark's Java process has ended.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkGoneError from error
    except Py4JError as error:
        # Java ended within the call: Py4J tells so by an error without a trace. Errors that Java answers have one.
        if type(error) is not Py4JError or "Trace:" in str(error):
            raise
        raise SparkGoneError from error
