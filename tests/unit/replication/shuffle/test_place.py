"""The spools that earlier runs made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.errors import InvalidArgumentError
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.archive.query import archive_columns
from isthmus.replication.shuffle.place import LISTENER, SpoolMaker, SpoolPlace, known_places, note_places


def identity(path: Path) -> str:
    return SpoolFolder(path).identity()


@pytest.mark.parametrize("table", [False, True], ids=["spool", "table"])
def test_i2_what_is_not_mounted_is_not_made_in_the_mount_point(tmp_path: Path, *, table: bool) -> None:
    """A machine that starts without the file system: another spool took the place of the first, and disappeared with what was settled at its source."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    place = SpoolPlace(str(tmp_path / "spool"), str(mount / "t")) if table else SpoolPlace(str(mount / "spool"))
    note_places([place], tmp_path)
    SpoolMaker(tmp_path).make([place])
    made = identity(Path(place.spool))
    mount.rename(away)
    mount.mkdir()
    for maker in (again := SpoolMaker(tmp_path), SpoolMaker(tmp_path)):
        with pytest.raises(SpoolError, match=rf"{place.table or place.spool} is missing; is its file system not"):
            maker.make([place])
    assert list(mount.iterdir()) == []
    mount.rmdir()
    away.rename(mount)
    again.make([place])
    assert identity(Path(place.spool)) == made


def test_i2_a_deleted_spool_is_made_again_once_where_that_is_confirmed(tmp_path: Path) -> None:
    place = SpoolPlace(str(tmp_path / "spool"), str(tmp_path / "table"))
    SpoolMaker(tmp_path).make([place])
    made = identity(tmp_path / "spool")
    for each in ("spool", "table"):
        shutil.rmtree(tmp_path / each)
    maker = SpoolMaker(tmp_path, makes_again=True)
    maker.make([place])
    assert identity(tmp_path / "spool") not in ("", made)
    assert ArchiveFolder(tmp_path / "table", archive_columns()).is_made()
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolError, match="is missing"):
        maker.make([place])


def test_a_run_that_was_killed_before_it_made_a_spool_makes_it_at_its_next_start(tmp_path: Path) -> None:
    place = SpoolPlace(str(tmp_path / "spool"), str(tmp_path / "table"))
    note_places([place], tmp_path)
    SpoolMaker(tmp_path).make([place])
    (known,) = known_places(tmp_path)
    assert known == place._replace(made=identity(tmp_path / "spool"))
    note_places([place], tmp_path)  # as each run does first
    assert known_places(tmp_path) == [known]
    (tmp_path / "spool-places.json").unlink()  # killed after it made the spool, and before that was noted
    note_places([place], tmp_path)
    SpoolMaker(tmp_path).make([place])
    assert known_places(tmp_path) == [known]


def test_i2_the_spool_of_a_listener_is_made_too_where_this_machine_can(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    elsewhere = SpoolPlace(str(tmp_path / "file" / "spool"), reader=LISTENER)
    place = SpoolPlace(str(tmp_path / "spool"), reader=LISTENER)
    maker = SpoolMaker(tmp_path)
    maker.make([elsewhere, place])
    assert known_places(tmp_path) == [elsewhere, place._replace(made=identity(tmp_path / "spool"))]
    maker.make([elsewhere, place])
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(SpoolError, match="is missing"):
        maker.make([place])


def test_a_list_that_cannot_be_read_stops_no_route_without_a_spool(tmp_path: Path) -> None:
    (tmp_path / "spool-places.json").write_text("[")
    SpoolMaker(tmp_path).make([])
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        SpoolMaker(tmp_path).make([SpoolPlace(str(tmp_path / "spool"))])


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="file/spool cannot be used: "):
        SpoolMaker(tmp_path).make([SpoolPlace(str(tmp_path / "file" / "spool"))])


def test_a_list_without_what_was_made_is_read(tmp_path: Path) -> None:
    (tmp_path / "spool-places.json").write_text(json.dumps([[str(tmp_path / "spool"), "", ""]]))
    SpoolMaker(tmp_path).make(known_places(tmp_path))
    (known,) = known_places(tmp_path)
    assert known.made
