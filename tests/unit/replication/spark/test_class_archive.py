from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from isthmus.replication.spark import class_archive
from isthmus.replication.spark.class_archive import ClassArchive, ClassArchiveError, archive_of, link_spark_home
from isthmus.replication.spark.java import Java, find_java

PACKAGED = find_java({"PATH": ""})


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    made = archive_of(PACKAGED)
    made.folder.mkdir(parents=True)
    return made


def install(archive: ClassArchive) -> None:
    file = archive.folder / "written"
    file.write_bytes(b"classes")
    archive.install(file)


def test_it_is_in_the_environment_a_folder_for_each_java(archive: ClassArchive, tmp_path: Path) -> None:
    assert archive.file.is_relative_to(tmp_path)
    assert archive.folder.name.startswith(f"spark-{pyspark.__version__}-java-{PACKAGED.version}-")
    other = archive_of(Java(tmp_path / "bin" / "java", PACKAGED.version, "PATH"))
    assert other.folder != archive.folder
    assert archive_of(PACKAGED) == archive


def test_one_that_was_installed_is_present(archive: ClassArchive) -> None:
    assert not archive.is_present
    install(archive)
    assert archive.is_present
    assert archive.file.read_bytes() == b"classes"


def test_i1_a_kill_while_it_is_installed_leaves_none_that_fits(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(archive)
    (archive.folder / "made-for").write_text("another Java\n")

    def end(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", end)
    with pytest.raises(KeyboardInterrupt):
        install(archive)
    assert not archive.is_present


def test_i2_after_an_upgrade_it_is_not_used(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(archive)
    jars = tmp_path / "pyspark" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setattr(class_archive, "_pyspark", lambda: (jars.parent, pyspark.__version__))
    assert not archive.is_present
    assert archive_of(PACKAGED).folder != archive.folder


@pytest.mark.parametrize("java", [PACKAGED, find_java()], ids=lambda java: java.origin)
def test_i2_java_passes_over_one_that_is_damaged(java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    archive = archive_of(java)
    archive.folder.mkdir(parents=True)
    install(archive)
    plain = subprocess.run([java.executable, "-version"], capture_output=True, text=True, check=True)
    shown = subprocess.run([java.executable, *archive.options, "-version"], capture_output=True, text=True, check=True)
    assert [line.replace(", sharing", "") for line in shown.stderr.splitlines()] == [
        line.replace(", sharing", "") for line in plain.stderr.splitlines()
    ]
    assert shown.stdout == plain.stdout


def test_a_java_without_an_archive_of_its_own_gets_one_below(archive: ClassArchive, tmp_path: Path) -> None:
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\nfor each; do case $each in -XX:SharedArchiveFile=*) : > "${each#*=}" ;; esac; done\n'
    )
    program.chmod(0o755)
    bare = ClassArchive(Java(program, 25, "PATH"), archive.folder)
    options = bare.writing(tmp_path / "file")
    assert options[:2] == (
        f"-XX:SharedArchiveFile={archive.folder}/java.jsa",
        f"-XX:ArchiveClassesAtExit={tmp_path}/file",
    )
    assert bare.options[0] == f"-XX:SharedArchiveFile={archive.folder}/java.jsa:{archive.file}"


def test_a_java_that_archives_nothing_is_reported(archive: ClassArchive, tmp_path: Path) -> None:
    bare = ClassArchive(Java(tmp_path / "no" / "bin" / "java", 25, "PATH"), archive.folder)
    with pytest.raises(ClassArchiveError, match="does not archive its own classes"):
        bare.writing(tmp_path / "file")
    assert os.listdir(archive.folder) == []


def test_an_archive_that_the_disk_refuses_is_reported(archive: ClassArchive) -> None:
    with pytest.raises(
        ClassArchiveError, match=r"cannot be written: No such file or directory; Spark starts without it"
    ):
        archive.install(archive.folder / "absent")


def test_those_of_other_releases_go(archive: ClassArchive) -> None:
    old = archive.folder.parent / "spark-4.0.0-java-17-0123456789ab"
    (old / "home").mkdir(parents=True)
    archive.remove_others()
    assert not old.exists()
    assert archive.folder.exists()


def test_what_a_killed_writer_left_goes(archive: ClassArchive) -> None:
    """Some 100 MiB each time."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"spark.{ended.pid}.jsa", f"java.{ended.pid}.jsa", f"spark.{os.getpid()}.jsa", "spark.jsa", "java.jsa"]
    for name in names:
        (archive.folder / name).touch()
    archive.remove_others()
    assert {each.name for each in archive.folder.iterdir()} == set(names[2:])


def test_the_spark_home_is_pysparks_without_its_zipped_sources(tmp_path: Path) -> None:
    home = link_spark_home(link_spark_home(tmp_path / "home"))
    names = {entry.name for entry in home.iterdir()}
    assert {"jars", "bin"} <= names
    assert "python" not in names
    assert (home / "jars").resolve() == (Path(pyspark.__file__).parent / "jars").resolve()
