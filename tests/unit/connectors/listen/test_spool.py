"""The spool of a listener: writing, delivery, settlement and deletion, across damage and restarts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.connectors.listen.inbox import Inbox
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.outgoing import Outgoing
from isthmus.connectors.spool.block import Block, Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import Range, SpoolReader
from isthmus.connectors.spool.writer import SpoolWriter

WAIT_SECONDS = 60.0


def options(folder: Path, spool_bytes: int = 1 << 30) -> ListenOptions:
    return ListenOptions(
        host="127.0.0.1",
        port=0,
        entity="hook",
        spool=folder,
        auth="none",
        secret="",
        signature="standard",
        certificate_file="",
        key_file="",
        max_body_bytes=1 << 20,
        spool_bytes=spool_bytes,
    )


def written(folder: Path, *groups: list[str], segment_bytes: int = 1 << 20) -> None:
    """A spool with a block for each group."""
    writer = SpoolWriter(folder, segment_bytes).open()
    for group in groups:
        writer.append([Record("", -1, 1, section.encode_message(body.encode())) for body in group])
        writer.sync()
    writer.close()


def given(outgoing: Outgoing) -> list[tuple[int, str]]:
    """All that there is, with positions."""
    found: list[tuple[int, str]] = []
    while (one := outgoing.next()) is not None:
        start, end = section.locate(one[1]).body
        found.append((one[0], section.contents(one[1], start, end).decode()))
    return found


@pytest.fixture
def outgoing(tmp_path: Path) -> Outgoing:
    return Outgoing(SpoolFolder(tmp_path))


def test_i2_a_lost_file_of_what_is_settled_keeps_no_segment(tmp_path: Path, outgoing: Outgoing) -> None:
    """The spool begins at a later record; the segment would never be deleted, and the spool would fill up."""
    written(tmp_path, ["a"], ["b"], ["c"], segment_bytes=1)
    outgoing.open()
    for position, _ in given(outgoing)[:2]:
        outgoing.settle(position)
    outgoing.save()
    assert SpoolFolder(tmp_path).numbers() == [2]
    (tmp_path / "taken").write_bytes(b"{")
    written(tmp_path, ["d"], ["e"], segment_bytes=1)
    again = Outgoing(SpoolFolder(tmp_path))
    again.open()
    found = given(again)
    assert [body for _, body in found] == ["c", "d", "e"]
    for position, _ in found:
        again.settle(position)
    again.save()
    assert again.settled_records.front == 5
    assert SpoolFolder(tmp_path).numbers() == [4]


def test_i3_damage_is_reported_with_its_numbers_and_delays_nothing(
    tmp_path: Path, outgoing: Outgoing, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, ["a"], ["b", "c"], ["d"], ["e"], ["f"], segment_bytes=200)
    first = SpoolFolder(tmp_path).segment(0)
    data = first.read_bytes()
    at = data.index(b"iSPB", 10) + 60
    first.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    caplog.set_level(logging.ERROR)
    outgoing.open()
    found = given(outgoing)
    assert [body for _, body in found] == ["a", "d", "e", "f"]
    assert "messages 1 to 2, 2 in all, that were answered 200 cannot be read, and are lost" in caplog.text
    for position, _ in found:
        outgoing.settle(position)
    outgoing.save()
    assert outgoing.settled_records.front == 6
    assert first not in list(SpoolFolder(tmp_path).segments.iterdir())
    assert (tmp_path / "quarantine" / first.name).exists()


def test_i4_after_a_read_that_failed_nothing_is_passed_over(
    tmp_path: Path, outgoing: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, ["a"], ["b"], ["c"])
    outgoing.open()
    blocks = SpoolReader.blocks
    is_failing = True

    def failing(self: SpoolReader, part: Range) -> Iterator[tuple[Block, list[Record]]]:
        for number, block in enumerate(blocks(self, part)):
            if number == 1 and is_failing:
                raise OSError(5, "Input/output error")
            yield block

    monkeypatch.setattr(SpoolReader, "blocks", failing)
    with pytest.raises(OSError, match="Input/output"):
        given(outgoing)
    is_failing = False
    outgoing.open()
    assert given(outgoing) == [(2, "b"), (3, "c")]  # the first was given before


def test_a_message_that_cannot_be_read_is_given_as_its_bytes(tmp_path: Path, outgoing: Outgoing) -> None:
    writer = SpoolWriter(tmp_path).open()
    writer.append([Record("", -1, 1, b"\0Sp\xc0"), Record("", -1, 1, section.encode_message(b"b"))])
    writer.sync()
    writer.close()
    outgoing.open()
    first, second = outgoing.next(), outgoing.next()
    assert first is not None
    assert second is not None
    assert section.contents(first[1], *section.locate(first[1]).body) == b"\0Sp\xc0"
    assert section.contents(second[1], *section.locate(second[1]).body) == b"b"


def test_i3_what_is_settled_does_not_fill_a_small_spool(tmp_path: Path) -> None:
    """A segment is deleted once another one has begun; in a full spool no other one would begin."""
    settled = [0]
    inbox = Inbox(options(tmp_path, 4096), lambda: None, lambda: settled[0])
    inbox.open()
    message = section.encode_message(b"x" * 5000)
    inbox.put([message]).result(WAIT_SECONDS)
    inbox._measured_at = -1e9
    assert inbox.is_full
    settled[0] = 1
    inbox._measured_at = -1e9
    assert not inbox.is_full
    inbox.put([message]).result(WAIT_SECONDS)
    inbox.close()
    assert SpoolFolder(tmp_path).numbers() == [0, 1]


def test_a_request_that_is_given_up_leaves_the_others_their_answer(tmp_path: Path) -> None:
    inbox = Inbox(options(tmp_path), lambda: None, lambda: 0)
    message = section.encode_message(b"x")
    first, second = inbox.put([message]), inbox.put([message])
    first.cancel()  # as the server's end does
    inbox.open()
    assert second.result(WAIT_SECONDS) is None
    inbox.close()


def test_an_unexpected_fault_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(options(tmp_path), lambda: None, lambda: 0)
    inbox.open()
    message = section.encode_message(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(SpoolWriter, "append", _failing)
        with pytest.raises(SpoolError, match="ValueError: no"):
            inbox.put([message]).result(WAIT_SECONDS)
    inbox.put([message]).result(WAIT_SECONDS)
    inbox.close()


def _failing(writer: SpoolWriter, records: object) -> int:
    raise ValueError("no")


def test_one_certificate_for_an_address(tmp_path: Path) -> None:
    from isthmus.connectors.listen.listener import _Server

    server = _Server(options(tmp_path))
    assert server.is_as(replace(options(tmp_path), entity="other"))
    assert not server.is_as(replace(options(tmp_path), certificate_file="own.pem"))
    server._loop.close()


def test_i3_numbers_that_are_used_again_are_not_settled(tmp_path: Path) -> None:
    """The segments were removed to make room; what comes then would be taken for what was settled."""
    written(tmp_path, ["a"], ["b"])
    first = Outgoing(SpoolFolder(tmp_path))
    first.open()
    for position, _ in given(first):
        first.settle(position)
    first.save()
    for path in SpoolFolder(tmp_path).segments.iterdir():
        path.unlink()
    (tmp_path / "durable").unlink()
    writer = SpoolWriter(tmp_path).open()
    assert writer.number < 2
    again = Outgoing(SpoolFolder(tmp_path))
    again.open(writer.number)
    writer.append([Record("", -1, 1, section.encode_message(b"c"))])
    writer.sync()
    writer.close()
    assert [body for _, body in given(again)] == ["c"]
