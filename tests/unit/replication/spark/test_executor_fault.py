"""Spark's report of an executor that cannot run isthmus is summarized in one sentence."""

from __future__ import annotations

import pytest

from isthmus.replication.spark.executor_fault import executor_fault

LOST = (
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) "
    "(10.0.0.7 executor 3): "
)
CASES = {
    "no isthmus": (
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  /opt/p/bin/python: Error while finding module specification for "
            "'isthmus.replication.spark.worker_daemon' (ModuleNotFoundError: No module named 'isthmus')\nPYTHONPATH was:\n  /x"
        ),
        "the executor on 10.0.0.7 has no isthmus in its Python /opt/p/bin/python: install isthmus 1.2.3 there",
    ),
    "no pyarrow": (
        "ModuleNotFoundError: No module named 'pyarrow'",
        "the executor on 10.0.0.7 has no pyarrow in its Python: install isthmus 1.2.3 there",
    ),
    "no Python": (
        'java.io.IOException: Cannot run program "/opt/p/bin/python": error=2, No such file or directory\n\tat java.base/…',
        "the executor on 10.0.0.7 cannot start the Python /opt/p/bin/python (No such file or directory): install Python and isthmus 1.2.3",
    ),
    "another Python": (
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than "
            "that in driver: 3.11, PySpark cannot run with different minor versions."
        ),
        "the executor on 10.0.0.7 has Python 3.12 and the driver 3.11: install the same minor version",
    ),
}


@pytest.mark.parametrize(("text", "reported"), CASES.values(), ids=CASES)
def test_a_report_is_reported_in_one_sentence(text: str, reported: str) -> None:
    found = executor_fault(LOST + text, "1.2.3")
    assert found.startswith(reported)
    assert "\n" not in found
    assert not found.endswith(".")


def test_the_interpreter_is_named_as_executors_start_it() -> None:
    # A script at that path starts another one, which is the one that Spark's report names.
    text, _ = CASES["no isthmus"]
    assert executor_fault(LOST + text, "1.2.3", "/opt/isthmus/python3").startswith(
        "the executor on 10.0.0.7 has no isthmus in its Python /opt/isthmus/python3: install isthmus 1.2.3 there"
    )


def test_an_executor_without_a_name_is_reported_too() -> None:
    assert executor_fault("No module named 'isthmus'", "1").startswith(
        "an executor has no isthmus in its Python: install"
    )


@pytest.mark.parametrize("text", ["", "java.io.EOFException", "No module named 'my_steps'"])
def test_another_report_is_none_of_these(text: str) -> None:
    assert executor_fault(text, "1") == ""
