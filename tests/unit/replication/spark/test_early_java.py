from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext, java_gateway

from harness.check.until import until
from isthmus.replication.spark.early_java import EarlyJava, launch_early
from isthmus.replication.spark.java import Java
from isthmus.replication.spark.launch import Launch

ANSWER = struct.pack(">ii", 4711, 6) + b"secret"
WAITS = "sys.stdin.read()"
# Under another name first, as Spark does: who waits for the file reads it at once.
ANSWERS = (
    "path = os.environ['_PYSPARK_DRIVER_CONN_INFO_PATH']; "
    f"open(path + '.new', 'wb').write({ANSWER!r}); os.rename(path + '.new', path); {WAITS}"
)


@pytest.fixture
def launched(tmp_path: Path) -> Callable[[str], EarlyJava]:
    def launch(script: str) -> EarlyJava:
        file = tmp_path / "bin" / "spark-submit"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!{sys.executable}\nimport os, sys, time\n{script}\n")
        file.chmod(0o700)
        java = Java(tmp_path / "java", 17, "PATH")
        return EarlyJava(Launch(java, tmp_path, sys.executable, {"spark.app.name": "a b"}))

    return launch


@pytest.fixture(autouse=True)
def no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The port and the secret of each virtual machine that PySpark connected to."""
    found: list[tuple[str, str]] = []

    def launch_gateway() -> SimpleNamespace:
        found.append((os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]))
        return SimpleNamespace(jvm="jvm", proc=None)

    monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
    return found


def test_pyspark_connects_to_the_one_that_was_launched(
    launched: Callable[[str], EarlyJava], connected: list[tuple[str, str]]
) -> None:
    early = launched(ANSWERS)
    assert early.attach()
    process = SparkContext._gateway.proc
    early.close()
    assert process.poll() is None
    assert connected == [("4711", "secret")]
    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    assert process.args[-3:] == ["--conf", "spark.app.name=a b", "pyspark-shell"]
    process.stdin.close()  # I1
    assert process.wait(30) == 0


@pytest.mark.parametrize("script", ["", "sys.exit(3)"])
def test_pyspark_launches_one_itself_where_it_has_ended(
    launched: Callable[[str], EarlyJava], connected: list[tuple[str, str]], script: str
) -> None:
    assert not launched(script).attach()
    assert connected == []
    assert SparkContext._gateway is None


def test_pyspark_launches_one_itself_where_it_cannot_connect(
    launched: Callable[[str], EarlyJava], monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch_gateway() -> SimpleNamespace:
        raise Py4JNetworkError("no answer")

    monkeypatch.setattr(java_gateway, "launch_gateway", launch_gateway)
    assert not launched(ANSWERS).attach()
    assert SparkContext._gateway is None
    assert "PYSPARK_GATEWAY_PORT" not in os.environ


def test_one_is_not_needed_where_pyspark_has_another(
    launched: Callable[[str], EarlyJava], connected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "another")
    assert not launched(WAITS).attach()
    assert connected == []


def test_i2_one_that_is_not_attached_is_killed(launched: Callable[[str], EarlyJava], tmp_path: Path) -> None:
    early = launched(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    early.close()
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_i3_ctrl_c_does_not_reach_it(launched: Callable[[str], EarlyJava], tmp_path: Path) -> None:
    early = launched(
        f"import signal; open({str(tmp_path / 'answer')!r}, 'w').write(str(signal.getsignal(2) is signal.SIG_IGN)); {WAITS}"
    )
    until(lambda: (tmp_path / "answer").exists() and (tmp_path / "answer").read_text())
    early.close()
    assert (tmp_path / "answer").read_text() == "True"


@pytest.mark.parametrize("options", [{"spark.speculation": "true"}, {"spark.pyspark.python": "/nowhere/python"}])
def test_what_is_wrong_is_left_to_the_session(tmp_path: Path, options: dict[str, str]) -> None:
    with launch_early(tmp_path, options) as early:
        assert early is None


def test_one_that_somebody_else_launched_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with launch_early(tmp_path, {}) as early:
        assert early is None
