"""Which files are where in a namespace's zones."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from isthmus.broker import zone
from isthmus.broker.config.namespace_file import read_config
from isthmus.broker.zone import ZoneFiles, back_up_zoned, check_zones, close_zoned, known_zones, open_zoned, zone_rows
from isthmus.entities import Journal
from isthmus.errors import ConfigError, InvalidArgumentError, StoreError
from isthmus.store import BlobFolder, RocksJournal


@pytest.fixture
def zones(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "abc"]


def put(journal: Journal, key: bytes) -> None:
    batch = journal.batch()
    batch.put(key, b"x")
    journal.write(batch)
    journal.sync()


def keys(journal: Journal) -> list[bytes]:
    return [key for key, _ in journal.scan(b"", b"\xff")]


def test_i1_without_its_zones_it_is_not_served(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    check_zones(data, ())
    close_zoned(open_zoned(data, zones))
    assert known_zones(data) == tuple(zones)
    with pytest.raises(InvalidArgumentError, match=f"--zone {zones[0]} --zone {zones[1]} --zone {zones[2]}"):
        check_zones(data, ())


def test_i2_folders_that_are_something_else_are_refused(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    RocksJournal(data / "store").close()
    with pytest.raises(InvalidArgumentError, match="3 zones, each another folder; there are 2"):
        check_zones(data, [zones[0], zones[1], zones[0]])
    with pytest.raises(InvalidArgumentError, match="is the data folder; name"):
        check_zones(data, [*zones[:2], data])
    with pytest.raises(InvalidArgumentError, match="is inside another one"):
        check_zones(data, [*zones[:2], zones[0] / "inner"])
    RocksJournal(zones[2] / "store").close()
    with pytest.raises(InvalidArgumentError, match="the data folder of another namespace"):
        check_zones(data, zones)


def test_all_zones_empty_is_no_new_namespace(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    close_zoned(open_zoned(data, zones))
    for each in zones:
        shutil.rmtree(each)
    with pytest.raises(StoreError, match="2 are needed"):
        open_zoned(data, zones)
    assert not any((zone / "store" / "db").exists() for zone in zones)


def test_a_namespace_in_one_folder_is_taken_over_and_can_go_back(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    plain, fragments = RocksJournal(data / "store"), RocksJournal(data / "fragments" / "3")
    put(plain, b"a")
    put(fragments, b"f")
    plain.close()
    fragments.close()
    body = os.urandom(700_000)
    writer = BlobFolder(data / "large").create(7)
    writer.write([body])
    writer.sync()
    writer.close()
    zoned = open_zoned(data, zones)
    assert keys(zoned.journal) == [b"a"]
    put(zoned.journal, b"b")
    assert zoned.blobs.open(7).read(300_000, 400_000) == body[300_000:]
    other = zoned.open_fragments(3)
    assert keys(other) == [b"f"]
    assert [row.state for row in zone_rows(zoned.journal, None, zoned.blobs)] == ["serving"] * 3
    other.close()
    close_zoned(zoned)
    assert not (data / "store").exists()
    assert (data / "store.before-zones").is_dir()

    back_up_zoned(data, tmp_path / "copy")
    check_zones(tmp_path / "copy", ())
    plain, fragments = RocksJournal(tmp_path / "copy" / "store"), RocksJournal(tmp_path / "copy" / "fragments" / "3")
    assert keys(plain) == [b"a", b"b"]
    assert keys(fragments) == [b"f"]
    assert BlobFolder(tmp_path / "copy" / "large").open(7).read(0, len(body)) == body
    plain.close()
    fragments.close()


def test_i1_a_take_over_that_is_killed_leaves_no_empty_data_folder(
    tmp_path: Path, zones: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    plain = RocksJournal(data / "store")
    put(plain, b"a")
    plain.close()

    def killed(folder: Path) -> None:
        folder.rename(folder.with_name("store.before-zones"))
        raise StoreError("killed")

    monkeypatch.setattr(zone, "_put_aside", killed)
    with pytest.raises(StoreError, match="killed"):
        open_zoned(data, zones)
    with pytest.raises(InvalidArgumentError, match="is in zones"):
        check_zones(data, ())
    zoned = open_zoned(data, zones)
    assert keys(zoned.journal) == [b"a"]
    close_zoned(zoned)


def test_i3_keys_and_certificate_are_in_every_zone(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    (data / "certificate").mkdir(parents=True)
    (data / "keys.json").write_text("1")
    for name in ("ca.pem", "server.pem"):
        (data / "certificate" / name).write_text(name)
    files = ZoneFiles(data, zones, "")
    files.mirror()
    shutil.rmtree(zones[0])
    (data / "keys.json").write_text("second")
    files.mirror()
    assert [(zone / "keys.json").read_text() for zone in zones] == ["second"] * 3
    assert (zones[0] / "keys.json").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(data)
    data.mkdir()
    (zones[1] / "keys.json").write_text("stale")
    os.utime(zones[1] / "keys.json", (1, 1))
    ZoneFiles(data, zones, "").restore()
    assert (data / "keys.json").read_text() == "second"
    assert sorted(path.name for path in (data / "certificate").iterdir()) == ["ca.pem", "server.pem"]


def test_i5_keys_written_over_in_a_zone_are_put_right(tmp_path: Path, zones: list[Path]) -> None:
    """As by `dd` over the whole zone: they are the newest, and would be taken where the data folder is lost later."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "keys.json").write_text("right")
    files = ZoneFiles(data, zones, "")
    files.mirror()
    (zones[1] / "keys.json").write_bytes(b"\0\0\0\0\0")
    files.mirror()
    assert [(zone / "keys.json").read_text() for zone in zones] == ["right"] * 3


def test_keys_of_a_zone_that_cannot_be_read_are_taken_from_another(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "keys.json").write_text("right")
    ZoneFiles(data, zones, "").mirror()
    (data / "keys.json").unlink()
    unreadable = zones[1] / "keys.json"
    os.utime(unreadable)
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        ZoneFiles(data, zones, "").restore()
    assert (data / "keys.json").read_text() == "right"


def test_a_zone_that_does_not_answer_delays_no_other(tmp_path: Path, zones: list[Path]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    files = ZoneFiles(data, zones, "")
    asked, answers = threading.Event(), threading.Event()

    def mirror() -> None:
        asked.set()
        answers.wait()

    files.mirror = mirror  # type: ignore[method-assign]
    files.start()
    assert asked.wait(60)
    answers.set()
    files.close()


def test_i4_a_zone_of_another_namespace_gives_nothing_and_keeps_what_it_has(tmp_path: Path) -> None:
    """Whichever was started more often."""
    sets = {name: [tmp_path / f"{name}-{each}" for each in "abc"] for name in ("ours", "theirs")}
    for name, folders in sets.items():
        data = tmp_path / name
        data.mkdir()
        (data / "keys.json").write_text(name)
        for _ in range(1 if name == "ours" else 3):
            zoned = open_zoned(data, folders)
            writer = zoned.blobs.create(7)
            writer.write([name.encode()])
            writer.sync()
            writer.close()
            ZoneFiles(data, folders, zoned.journal.set_name).mirror()
            close_zoned(zoned)
    theirs = sets["theirs"][2]
    before = {path: path.read_bytes() for each in ("large", "keys.json") for path in _files(theirs / each)}
    mixed = [*sets["ours"][:2], theirs]
    zoned = open_zoned(tmp_path / "ours", mixed)
    assert "another namespace" in zoned.blobs.reasons()[2]
    ZoneFiles(tmp_path / "ours", mixed, zoned.journal.set_name).mirror()
    assert zoned.blobs.open(7).read(0, 4) == b"ours"
    zoned.blobs.remove(7)
    writer = zoned.blobs.create(8)
    writer.write([b"more"])
    writer.sync()
    writer.close()
    (tmp_path / "ours" / "keys.json").unlink()
    os.utime(theirs / "keys.json")
    ZoneFiles(tmp_path / "ours", mixed, zoned.journal.set_name).restore()
    assert (tmp_path / "ours" / "keys.json").read_text() == "ours"
    close_zoned(zoned)
    assert {path: path.read_bytes() for each in ("large", "keys.json") for path in _files(theirs / each)} == before


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def test_the_file_names_three(tmp_path: Path) -> None:
    config = read_config("zones: [a, b, /disks/c]", str(tmp_path / "ns.yaml"))
    assert config.zones == (tmp_path / "a", tmp_path / "b", Path("/disks/c"))
    for text in ("zones: [a, b]", "zones: [a, b, a]", "zones: a"):
        with pytest.raises(ConfigError, match="zones"):
            read_config(text, "ns.yaml")
