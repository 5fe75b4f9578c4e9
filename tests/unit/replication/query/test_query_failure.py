"""The text that describes a failed query."""

from __future__ import annotations

import pytest

from isthmus.replication.query.query_failure import cause_of


def test_the_cause_of_a_failure_is_found_in_sparks_report() -> None:
    report = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: TaskEnd
Traceback (most recent call last):
  File "source.py", line 297, in _rows
    raise item.error
isthmus.bridge.lease_error.LeaseError: 'q': the sink failed: jfk: connection refused
 SQLSTATE: 38000
    at org.apache.spark.api.python.BasePythonRunner"""
    assert cause_of(report) == "'q': the sink failed: jfk: connection refused"
    assert cause_of("java.lang.IllegalStateException: boom") == "java.lang.IllegalStateException: boom"
    assert cause_of("") == "the query failed without an error text"


@pytest.mark.parametrize(
    "report",
    [
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting ...",
        "Job aborted due to stage failure\nCaused by: java.io.IOException: Connection reset by peer\n  at sun.nio.ch",
    ],
)
def test_a_killed_worker_is_called_that(report: str) -> None:
    assert cause_of(report).startswith("a Python worker of the route was killed, or crashed")
