"""What is shipped, and what it is installed from."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer.main

import isthmus
from isthmus.cli.app import create_app

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-run.lock", "requirements-build.lock")
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def locked(file: str) -> set[str]:
    return names(re.findall(r"^[a-zA-Z0-9._-]+==[^ ]+", (ROOT / file).read_text(), re.MULTILINE))


def test_every_dependency_is_locked() -> None:
    project = PROJECT["project"]
    wanted = names(project["dependencies"]) | names(PROJECT["dependency-groups"]["dev"])
    for extra in project["optional-dependencies"].values():
        wanted |= {name for name in names(extra) if not name.startswith("isthmus")}
    assert wanted <= locked("requirements.lock")
    assert names(PROJECT["dependency-groups"]["build"]) <= locked("requirements-build.lock")


def test_what_runs_is_locked_at_the_same_versions_and_without_what_only_develops() -> None:
    def pinned(file: str) -> set[str]:
        return set(re.findall(r"^[a-zA-Z0-9._-]+==[^ ;]+", (ROOT / file).read_text(), re.MULTILINE))

    assert pinned("requirements-run.lock") < pinned("requirements.lock")
    assert names(PROJECT["project"]["dependencies"]) <= locked("requirements-run.lock")
    assert not names(PROJECT["dependency-groups"]["dev"]) & locked("requirements-run.lock")


def test_the_container_is_of_a_named_base_and_runs_without_rights() -> None:
    assert re.search(r"^ARG BASE=\S+:\d+\.\d+\.\d+-slim-[a-z]+$", CONTAINER, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", CONTAINER, re.MULTILINE)) == {"${BASE}"}
    assert re.findall(r"^USER (\d+)$", CONTAINER, re.MULTILINE) == ["10001"]
    assert set(re.findall(r"[\w-]+\.lock", CONTAINER)) == {"requirements-run.lock", "requirements-build.lock"}


def test_the_health_checks_of_container_and_unit_are_a_verb_that_there_is() -> None:
    unit = (ROOT / "deploy" / "isthmus-namespace@.service").read_text()
    found = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    started = re.search(r"^ExecStartPost=-\S+/bin/isthmus (.*)$", unit, re.MULTILINE)
    assert found is not None
    assert started is not None
    for tokens in (json.loads(found[1])[1:], started[1].split()):
        group, verb, *options = tokens
        command = typer.main.get_command(create_app()).commands[group].commands[verb]  # type: ignore[attr-defined]
        assert command.make_context(verb, options).params["data"]


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_names_versions_and_hashes_but_no_host(file: str) -> None:
    text = (ROOT / file).read_text()
    assert "://" not in text
    assert "--index" not in text
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", text.strip()):
        assert "==" in entry
        assert "--hash=sha256:" in entry


def test_the_version_is_said_once_and_the_same() -> None:
    assert PROJECT["project"]["version"] == isthmus.__version__


def test_ci_runs_what_the_readme_names() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["exec make check test"]


def test_the_wheel_holds_everything_that_runs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info for info in archive.infolist()}
    launcher = files["isthmus/replication/spark/launcher/bin/java"]
    assert (launcher.external_attr >> 16) & stat.S_IXUSR
    assert "isthmus/replication/log4j2.properties" in files
    assert "isthmus/py.typed" in files
    assert "pyspark_isthmus/__init__.py" in files
    assert "pyspark_isthmus_kafka/__init__.py" in files
    assert "pyspark_isthmus_spool/__init__.py" in files
    assert "pyspark_servicebus/__init__.py" in files
