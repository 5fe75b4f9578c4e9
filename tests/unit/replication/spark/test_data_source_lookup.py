"""What is looked up in the driver, and when Spark looks itself; with the real virtual machine: tests/spark/source/test_servicebus_source.py."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.replication.spark.data_source_lookup import DataSourceLookup
from pyspark_isthmus import DefaultSource


class Machine:
    """As much of Spark's virtual machine as is called."""

    def __init__(self, *, is_known: bool = False) -> None:
        self.reported: Any = None
        manager = SimpleNamespace(dataSourceBuilders=lambda: SimpleNamespace(isDefined=lambda: is_known))
        setattr(manager, "dataSourceBuilders_$eq", self._record)
        utils = SimpleNamespace(createPythonFunction=lambda pickled: pickled, toScalaMap=dict)
        sources = SimpleNamespace(v2=SimpleNamespace(python=SimpleNamespace(UserDefinedPythonDataSource=lambda it: it)))
        setattr(sources, "DataSourceManager$", SimpleNamespace(**{"MODULE$": manager}))
        python = SimpleNamespace(**{"PythonUtils$": SimpleNamespace(**{"MODULE$": utils})})
        spark = SimpleNamespace(
            sql=SimpleNamespace(execution=SimpleNamespace(datasources=sources)), api=SimpleNamespace(python=python)
        )
        self.org = SimpleNamespace(apache=SimpleNamespace(spark=spark))
        self.scala = SimpleNamespace(Some=lambda it: it)
        self.java = SimpleNamespace(util=SimpleNamespace(HashMap=_HashMap))

    def _record(self, builders: Any) -> None:
        self.reported = builders


class _HashMap(dict[str, bytes]):
    def put(self, key: str, value: bytes) -> None:
        self[key] = value


def session(machine: Machine) -> Any:
    return SimpleNamespace(_jvm=machine)


def test_i1_what_packages_have_is_reported() -> None:
    machine = Machine()
    assert DataSourceLookup(sys.executable).pass_on(session(machine))
    assert set(machine.reported) >= {"isthmus", "isthmus_kafka", "isthmus_spool", "servicebus"}
    assert pickle.loads(machine.reported["isthmus"]) is DefaultSource


def test_i1_no_callback_runs_for_one_that_has_looked_itself() -> None:
    machine = Machine(is_known=True)
    assert not DataSourceLookup(sys.executable).pass_on(session(machine))
    assert machine.reported is None


def test_i1_a_release_of_spark_that_is_otherwise_looks_itself() -> None:
    assert not DataSourceLookup(sys.executable).pass_on(session(SimpleNamespace(org=SimpleNamespace())))  # type: ignore[arg-type]


def test_i1_a_package_that_cannot_be_imported_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('broken')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    machine = Machine()
    assert not DataSourceLookup(sys.executable).pass_on(session(machine))
    assert machine.reported is None


def test_what_a_package_prints_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark_loud.py").write_text("print('loud')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    machine = Machine()
    assert DataSourceLookup(sys.executable).pass_on(session(machine))
    assert "isthmus" in machine.reported


def test_one_that_is_closed_leaves_no_process() -> None:
    lookup = DataSourceLookup(sys.executable)
    lookup.close()
    assert lookup._process.returncode == -signal.SIGKILL
