"""The progress of an import, over kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.app import exit_code
from isthmus.errors import InvalidArgumentError
from isthmus.operations.file.message_file import FileNotWrittenError
from isthmus.operations.file.progress_note import ProgressNote


def note(folder: Path, created_at: str = "then", target: str = "ns/q") -> ProgressNote:
    return ProgressNote(folder / "file", "export", target, created_at)


def test_i1_what_was_refused_is_not_done(tmp_path: Path) -> None:
    first = note(tmp_path)
    first.write()
    first.add([0, 1, 3], before=4)
    again = note(tmp_path)
    assert [index in again for index in range(6)] == [True, True, False, True, False, False]
    assert again.count == 3
    again.add([2, 4], before=5)
    assert note(tmp_path).count == 5


def test_ids_are_the_same_for_one_import_and_others_for_the_next(tmp_path: Path) -> None:
    first = note(tmp_path)
    first.write()
    assert note(tmp_path).message_id(7) == first.message_id(7) != first.message_id(8)
    first.remove()
    assert note(tmp_path).message_id(7) != first.message_id(7)


def test_an_entity_made_anew_has_none_of_the_messages(tmp_path: Path) -> None:
    note(tmp_path).add([0, 1], before=2)
    assert note(tmp_path, "later").count == 0
    assert note(tmp_path, "then").count == 2
    assert note(tmp_path, "").count == 2
    assert note(tmp_path, target="ns/other").count == 0


def test_another_namespace_at_the_same_address_has_none_of_the_messages(tmp_path: Path) -> None:
    def of(identity: str) -> ProgressNote:
        return ProgressNote(tmp_path / "file", "export", "ns/q", "", identity)

    of("one").add([0, 1], before=2)
    assert [of(each).count for each in ("one", "another", "")] == [2, 0, 2]
    (tmp_path / "file.progress").write_text('{"export_id": "export", "target": "ns/q", "done": 2}')
    assert of("one").count == 2  # it names none


def test_i5_a_namespace_is_known_by_its_identity(tmp_path: Path) -> None:
    def of(target: str, identity: str = "one") -> ProgressNote:
        return ProgressNote(tmp_path / "file", "export", target, "", identity, is_reported=True)

    first = of("localhost:1/a/b")
    first.add([0, 1], before=2)
    again = of("127.0.0.1:2/a/b")
    assert (again.count, again.message_id(0)) == (2, first.message_id(0))
    assert [of("127.0.0.1:2/a/b", "two").count, of("127.0.0.1:2/b").count] == [0, 0]
    again.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"others": [7]}', '{"export_id": "export", "target": "ns/q", "done": "x"}']
)
def test_i3_a_note_that_cannot_be_read_ends_the_import(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.progress").write_text(content)
    with pytest.raises(InvalidArgumentError, match="remove it to send all messages again"):
        note(tmp_path)


def test_i2_a_note_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    fresh = note(tmp_path)
    (tmp_path / "file.progress").mkdir()
    with pytest.raises(FileNotWrittenError, match=r"file\.progress") as refused:
        fresh.write()
    with pytest.raises(FileNotWrittenError, match=r"file\.progress"):
        fresh.remove()
    assert exit_code(refused.value) == 1  # messages may have been sent


def test_i4_imports_of_one_file_into_several_entities_keep_a_note_each(tmp_path: Path) -> None:
    first = note(tmp_path)
    first.add(range(500), before=500)
    other = note(tmp_path, target="ns/other")
    assert other.count == 0
    other.add(range(3), before=4)
    assert (note(tmp_path).count, note(tmp_path, target="ns/other").count) == (500, 3)
    assert note(tmp_path).message_id(7) == first.message_id(7) != other.message_id(7)
    note(tmp_path, target="ns/other").remove()
    assert (note(tmp_path).count, note(tmp_path, target="ns/other").count) == (500, 0)
    assert ProgressNote(tmp_path / "file", "another export", "ns/q").count == 0
    note(tmp_path).remove()
    assert not list(tmp_path.iterdir())
