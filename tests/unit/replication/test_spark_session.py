"""What is refused before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.replication.spark_session import create_spark_session


def test_a_python_that_this_machine_does_not_have_is_refused_with_what_to_do(tmp_path: Path) -> None:
    python = str(tmp_path / "bin" / "python")
    with pytest.raises(
        InvalidArgumentError, match=r"spark.pyspark.python is .*which this machine cannot run.*create a link"
    ):
        create_spark_session("x", routes=1, work_directory=tmp_path, options={"spark.pyspark.python": python})
    assert not list(tmp_path.iterdir())
