"""The messages in spools, as verification and status read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.spool.backlog import spool_backlog
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.reader import SpoolMissingError, SpoolReader
from isthmus.connectors.spool.refused import set_aside
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.query.route_progress import Seldom, SpoolView
from isthmus.replication.shuffle.contents import SpoolContents
from isthmus.replication.shuffle.note import BatchNote, write_note
from isthmus.replication.shuffle.place import SpoolPlace, note_places
from isthmus.replication.shuffle.start import check_spools, places_of, spool_folder, spool_view, stranded
from isthmus.replication.shuffle.state import beginning_of, write_state
from isthmus.topology import read
from isthmus.topology.model import Federation, Route
from isthmus.topology.route import routes

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"
KEY = "ewr/a id"
NAMESPACES = read(HEAD + "  t: {pattern: copy, source: ewr, target: jfk, topic: a}\n").namespaces


def route(setting: str, *, topic: str = "a") -> Route:
    (found,) = routes(read(HEAD + f"  t: {{pattern: copy, source: ewr, target: jfk, topic: {topic}, {setting}}}\n"))
    return found


def write(path: Path, *messages: bytes, segment_bytes: int = 1 << 20, key: str = KEY) -> None:
    writer = SpoolWriter(path, segment_bytes=segment_bytes, wall=lambda: 5.0).open()
    for message in messages:
        writer.append([Record(key, -1, 0, message) if message else BatchNote(number=1).record()])
    writer.sync()
    writer.close()


def remaining(found: Route, state: Path) -> list[bytes]:
    return list(SpoolContents({found.name: found}, state).waiting(found.name))


def test_what_is_in_either_spool_and_not_taken_remains(tmp_path: Path) -> None:
    found = route("steps: [{deduplicate: 10m}]")
    folder = spool_folder(found, tmp_path)
    assert remaining(found, tmp_path) == []
    write(folder / "in", b"a", b"b", b"c")
    write(folder / "out", b"d", b"", b"e")
    SpoolReader(folder / "in").take(2)
    SpoolReader(folder / "out").take(1)
    assert remaining(found, tmp_path) == [b"c", b"e"]
    set_aside(folder / "out", 0, b"d", Disposition("dead-letter", "TooLarge"), 1.0)
    assert list(SpoolContents({found.name: found}, tmp_path).set_aside(found.name)) == [b"d"]
    view = spool_view(folder)
    assert (view.waiting, view.oldest_ms, view.refused) == (1 + 2, 5000, 1)  # a note counts, too


def test_results_are_no_messages_of_the_source(tmp_path: Path) -> None:
    found = route("steps: [{aggregate: {window: 5m, fields: {n: count}}}]")
    folder = spool_folder(found, tmp_path)
    write(folder / "in", b"a")
    write(folder / "out", b"result")
    assert remaining(found, tmp_path) == [b"a"]


def test_a_route_without_spool_has_nothing(tmp_path: Path) -> None:
    assert remaining(route("mailbox: true"), tmp_path) == []


def test_a_missing_segment_that_was_not_taken_is_reported(tmp_path: Path) -> None:
    found = route("when_full: spool")
    folder = spool_folder(found, tmp_path) / "in"
    write(folder, b"a", b"b", segment_bytes=1)
    reader = SpoolReader(folder)
    reader.take(0)
    (folder / "segments" / f"{0:020d}.seg").rename(tmp_path / "away")
    assert remaining(found, tmp_path) == [
        b"b"
    ]  # the first that exists: a reading route reports the one that is missing
    with pytest.raises(SpoolMissingError):
        reader.ranges(reader.position(0)._replace(segment=0, number=0), reader.last(), 1)


def test_what_no_route_sends_on_any_more_is_named(tmp_path: Path) -> None:
    was, now = route("steps: [{deduplicate: 10m}]"), route("when_full: spool")
    folder = spool_folder(was, tmp_path)
    write(folder / "in", b"a")
    write(folder / "out", b"b", b"c")
    assert list(stranded([was], tmp_path, NAMESPACES)) == []
    assert list(stranded([now], tmp_path, NAMESPACES)) == [(folder / "out", 2)]
    assert list(stranded([route("mailbox: true")], tmp_path, NAMESPACES)) == [(folder / "in", 1), (folder / "out", 2)]
    SpoolReader(folder / "in").take(1)
    assert list(stranded([], tmp_path, NAMESPACES)) == [(folder / "out", 2)]


def test_a_spool_elsewhere_that_the_file_names_no_more_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    was, now = (
        route(f"steps: [{{deduplicate: {{window: 10m, spool: {tmp_path / name}}}}}]") for name in ("was", "now")
    )
    note_places(places_of([was], state, NAMESPACES), state)
    note_places(places_of([now], state, NAMESPACES), state)
    write(spool_folder(was, state) / "in", b"a")
    assert list(stranded([was], state, NAMESPACES)) == []
    assert list(stranded([now], state, NAMESPACES)) == [(tmp_path / "was" / was.name / "in", 1)]


def test_a_list_of_spools_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """A full disk, or another owner: `run` ended with a traceback."""
    (tmp_path / "spool-places.json.new").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"spool-places\.json.* cannot be written"):
        note_places([SpoolPlace("/srv/spool")], tmp_path)


def test_a_spool_of_an_archive_that_the_file_names_no_more_is_named_for_what_its_table_has_not(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()

    def archive(spool: str, table: str = "t") -> Route:
        task = f"{{pattern: archive, source: ewr, queue: a, table: {tmp_path}/{table}, spool: {tmp_path}/{spool}}}"
        (found,) = routes(read(f"{HEAD}  t: {task}\n"))
        return found

    note_places(places_of([archive("was")], state, NAMESPACES), state)
    write(tmp_path / "was", b"a", b"b")
    assert list(stranded([archive("was")], state, NAMESPACES)) == []
    assert list(stranded([archive("now")], state, NAMESPACES)) == [(tmp_path / "was", 2)]
    other = archive("was", "other")
    assert list(stranded([other], state, NAMESPACES)) == []  # it goes into another table
    note_places(places_of([other], state, NAMESPACES), state)
    assert list(stranded([archive("now")], state, NAMESPACES)) == [(tmp_path / "was", 2)]
    table = ArchiveFolder(tmp_path / "t", {}).open()
    table.staging().mkdir()
    table.commit(SpoolReader(tmp_path / "was").identity, 0, 2, 2)
    assert list(stranded([archive("now")], state, NAMESPACES)) == []


def test_messages_in_windows_that_are_open_are_named_where_the_step_was_taken_out(tmp_path: Path) -> None:
    """Both spools are empty, and nothing but the checkpoint has them."""
    was = route("steps: [{aggregate: {window: 5m, fields: {n: count}}}]")
    folder = spool_folder(was, tmp_path)
    write(folder / "in", b"a", b"b", b"c", b"d")
    began = beginning_of(folder / "in", folder / "out")
    SpoolReader(folder / "in").take(4)
    SpoolFolder(folder / "out").make()
    write_state(folder / "out", {"query": "q", "source": "ewr/a/t", "fields": {"n": "count"}, "by": [], "began": began})
    write_note(folder / "out", BatchNote(number=1, taken=1))
    assert list(stranded([was], tmp_path, NAMESPACES)) == []
    assert (spool_view(folder).waiting, spool_view(folder).in_windows) == (0, 3)
    assert list(stranded([route("mailbox: true")], tmp_path, NAMESPACES)) == [(folder / "out", 3)]
    set_aside(folder / "in", 0, b"a", Disposition("dead-letter", "StepFailed"), 1.0)
    assert list(stranded([], tmp_path, NAMESPACES)) == [(folder / "out", 2)]
    write_note(folder / "out", BatchNote(number=2, taken=3))
    assert list(stranded([], tmp_path, NAMESPACES)) == []


def listening(folder: Path, entity: str = "hook", kind: str = "http") -> Federation:
    """A file whose task reads what is sent to a listener."""
    more = ", delivery: push" if kind == "eventgrid" else ""
    return read(
        f"isthmus: 1\nnamespaces:\n  ewr: {{connection: env:A}}\n  web: {{kind: {kind}{more}, listen: 127.0.0.1:1, spool: {folder}}}\n"
        f"tasks:\n  t: {{pattern: move, source: web, queue: {entity}, target: ewr}}\n"
    )


@pytest.mark.parametrize("kind", ["http", "eventgrid"])
def test_what_a_listener_has_answered_and_no_route_reads_any_more_is_named(tmp_path: Path, kind: str) -> None:
    """Its sender got the answer that it is on disk, and does not send it again."""
    state, was = tmp_path / "state", listening(tmp_path / "hooks", kind=kind)
    state.mkdir()

    def left(now: Federation) -> list[tuple[Path, int]]:
        note_places(places_of(routes(now), state, now.namespaces), state)
        return list(stranded(routes(now), state, now.namespaces))

    assert left(was) == []
    spool = tmp_path / "hooks" / "hook"
    write(spool, b"a", b"b", b"c", b"d", key="listener")
    identity = SpoolReader(spool).identity
    (spool / "taken").write_text(json.dumps({"spool": identity, "front": 1, "above": [[2, 3]]}))
    assert left(was) == []
    assert left(listening(tmp_path / "hooks", "other", kind)) == [(spool, 2)]
    assert left(listening(tmp_path / "elsewhere", kind=kind)) == [(spool, 2)]
    none = read(HEAD + "  t: {pattern: copy, source: ewr, target: jfk, topic: a}\n")
    assert left(none) == [(spool, 2)]
    (spool / "taken").write_text(json.dumps({"spool": identity, "front": 4, "above": []}))
    assert left(none) == []


def test_a_list_of_spools_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "spool-places.json").write_text("[")
    with pytest.raises(InvalidArgumentError, match=r"spool-places\.json"):
        list(stranded([], tmp_path, NAMESPACES))


def test_a_spool_that_was_never_made_is_empty(tmp_path: Path) -> None:
    assert spool_backlog(tmp_path / "none") == (0, 0, 0, 0)


def test_spools_are_looked_at_once_in_a_second() -> None:
    now = [0.0]
    views = iter([SpoolView(waiting=1), SpoolView(waiting=2)])
    look = Seldom(lambda: next(views), lambda: now[0])
    assert (look().waiting, look().waiting) == (1, 1)
    now[0] = 1.0
    assert look().waiting == 2


STEPS = "steps: [{deduplicate: 10m}]"


@pytest.mark.parametrize(("setting", "spool"), [("when_full: spool", "in"), (STEPS, "in"), (STEPS, "out")])
def test_messages_of_a_former_topic_are_not_sent_as_those_of_the_present_one(
    tmp_path: Path, setting: str, spool: str
) -> None:
    was, now = route(setting), route(setting, topic="b")
    folder = spool_folder(was, tmp_path)
    assert spool_folder(now, tmp_path) == folder
    write(folder / spool, b"a", b"", b"b", key=f"ewr/{was.source.entity} id")
    check_spools([was], tmp_path)
    with pytest.raises(ConfigError) as caught:
        check_spools([now], tmp_path)
    (fault,) = caught.value.faults
    assert fault.message == (
        f"task t: spool {folder / spool} contains messages of ewr/{was.source.entity}, and the task reads ewr/{now.source.entity} now: their copies "
        "would name that as their origin"
    )
    SpoolReader(folder / spool).take(3)
    check_spools([now], tmp_path)
    write(folder / spool, b"c", key=f"ewr/{now.source.entity} id")
    check_spools([now], tmp_path)


def test_a_mailbox_that_a_task_gets_or_gives_up_has_the_same_topic(tmp_path: Path) -> None:
    found = route("when_full: spool")
    folder = spool_folder(found, tmp_path) / "in"
    write(folder, b"a", key="ewr/isthmus.t.jfk id")
    check_spools([found], tmp_path)


def test_results_in_a_spool_are_their_own_source(tmp_path: Path) -> None:
    aggregated = "steps: [{aggregate: {window: 5m, fields: {n: count}}}]"
    found = route(aggregated, topic="b")
    write(spool_folder(found, tmp_path) / "out", b"result", key="ewr/a/t id")
    check_spools([found], tmp_path)


def test_a_spool_that_cannot_be_read_is_reported_by_its_route(tmp_path: Path) -> None:
    found = route("when_full: spool", topic="b")
    folder = spool_folder(found, tmp_path) / "in"
    write(folder, b"a", b"b", segment_bytes=1)
    SpoolReader(folder).take(1)
    (folder / "segments" / f"{1:020d}.seg").rename(tmp_path / "away")
    check_spools([found], tmp_path)


def test_a_spool_that_cannot_be_looked_at_for_a_moment_is_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Its route moves messages, and would be started again for what is only displayed."""
    now, views = [0.0], iter([SpoolView(waiting=1), OSError("stale"), OSError("stale"), SpoolView(waiting=4)])

    def read() -> SpoolView:
        found = next(views)
        if isinstance(found, OSError):
            raise found
        return found

    look, seen = Seldom(read, lambda: now[0]), []
    for _ in range(4):
        seen.append(look().waiting)
        now[0] += 2.0
    assert seen == [1, 1, 1, 4]
    assert [record.message for record in caplog.records] == ["a spool cannot be looked at: stale"]


def test_a_spool_that_was_never_looked_at_is_not_shown_as_empty() -> None:
    def refused() -> SpoolView:
        raise OSError("stale")

    with pytest.raises(OSError, match="stale"):
        Seldom(refused)()


def test_a_former_spool_that_cannot_be_read_keeps_no_run_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """E.g. on storage that this user may not read any more: no route of the file uses it."""
    write(tmp_path / "spools" / "gone.ewr.jfk" / "in", b"a")
    places = [SpoolPlace(str(tmp_path / "was")), SpoolPlace(str(tmp_path / "a"), str(tmp_path / "t"))]
    note_places(places, tmp_path)
    (tmp_path / "was").mkdir()
    (tmp_path / "was" / "segments").touch()  # listing it is an error
    commits = tmp_path / "t" / "_isthmus" / "commits"
    commits.mkdir(parents=True)
    (commits / "1.json").touch()  # damaged
    assert list(stranded([], tmp_path, NAMESPACES)) == [(tmp_path / "spools" / "gone.ewr.jfk" / "in", 1)]
    assert [str(each) in message for each, message in zip(("was", "a"), caplog.messages, strict=True)] == [True, True]
    assert "it is not known whether it has messages" in caplog.text


def test_a_spool_that_this_user_may_not_read_is_a_fault_of_its_task(tmp_path: Path) -> None:
    """E.g. one of a run of another user: `run` ended with a traceback."""
    found = route("steps: [{deduplicate: 10m}]")
    folder = spool_folder(found, tmp_path) / "in"
    folder.mkdir(parents=True)
    (folder / "segments").touch()  # listing it is an error
    with pytest.raises(ConfigError, match=r"task t: spool .*/in cannot be read: Not a directory"):
        check_spools([found], tmp_path)
