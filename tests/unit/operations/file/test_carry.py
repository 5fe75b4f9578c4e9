"""Messages of a file sent to an entity, against a scripted target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.errors import IsthmusError
from isthmus.message.name import NAMESPACE_ID
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.file import carry
from isthmus.operations.file.carry import import_file
from isthmus.operations.file.message_file import MessageWriter
from isthmus.operations.file.progress_note import ProgressNote


class Target:
    """A sender that is ready."""

    def wait_ready(self) -> Target:
        return self

    def close(self) -> None:
        """There is no connection to close."""


def test_i2_only_what_was_not_answered_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageWriter(tmp_path / "file", {}) as writer:
        for number in range(3):
            writer.write(section.encode_message(b"%d" % number), 0)
        writer.finish()
    sent: list[bytes] = []

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        sent.extend(payload[-1:] for payload in payloads)
        if len(sent) > 3:
            return [None] * len(payloads)
        error = UnconfirmedError("lost")
        error.results = [None, error, None]
        raise error

    client: Any = SimpleNamespace(namespace_id="one", peer_properties={})
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    with pytest.raises(UnconfirmedError) as lost:
        import_file(client, "q", tmp_path / "file", namespace="ns")
    assert lost.value.__notes__ == [f"message 2 of '{tmp_path / 'file'}'", "2 messages were accepted before"]
    done = import_file(client, "q", tmp_path / "file", namespace="ns")
    assert (done.accepted, done.passed_over, sent) == (1, 2, [b"0", b"1", b"2", b"1"])


def test_another_namespace_at_the_same_address_gets_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that may only send cannot ask when the entity was made."""
    with MessageWriter(tmp_path / "file", {}) as writer:
        writer.write(section.encode_message(b"0"), 0)
        writer.finish()
    is_lost = [True]

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        return [None] * len(payloads)

    def removed(self: ProgressNote) -> None:
        if is_lost.pop():
            raise KeyboardInterrupt  # killed before the note goes

    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    monkeypatch.setattr(ProgressNote, "remove", removed)
    first, second = (SimpleNamespace(namespace_id=each, peer_properties={}) for each in ("one", "two"))
    client: Any = first
    with pytest.raises(KeyboardInterrupt):
        import_file(client, "q", tmp_path / "file", namespace="ns")
    is_lost.append(False)
    client = second
    done = import_file(client, "q", tmp_path / "file", namespace="ns")
    assert (done.accepted, done.passed_over) == (1, 0)


@pytest.mark.parametrize(("entity", "reported", "again"), [("q", "one", 1), ("other", "one", 2), ("q", "", 2)])
def test_an_import_continues_at_another_address_of_its_namespace(
    entity: str, reported: str, again: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageWriter(tmp_path / "file", {}) as writer:
        for body in (b"0", b"1"):
            writer.write(section.encode_message(body), 0)
        writer.finish()
    client: Any = SimpleNamespace(namespace_id="one", peer_properties={NAMESPACE_ID: reported})
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", lambda client, sender, payloads: [None] * len(payloads))
    monkeypatch.setattr(carry, "_GROUP", 1)
    stops = iter([False, True])
    import_file(client, "q", tmp_path / "file", namespace="localhost:1", is_stopped=lambda: next(stops))
    done = import_file(client, entity, tmp_path / "file", namespace="127.0.0.1:2")
    assert (done.accepted, done.passed_over) == (again, 2 - again)


def test_i2_what_is_stopped_and_run_again_sends_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MessageWriter(tmp_path / "file", {}) as writer:
        for number in range(5):
            writer.write(section.encode_message(b"%d" % number), 0)
        writer.finish()
    sent: list[bytes] = []

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        sent.extend(payload[-1:] for payload in payloads)
        return [None] * len(payloads)

    client: Any = SimpleNamespace(namespace_id="one", peer_properties={})
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    monkeypatch.setattr(carry, "_GROUP", 2)
    done = import_file(client, "q", tmp_path / "file", namespace="ns", is_stopped=lambda: len(sent) >= 2)
    assert (done.accepted, done.complete, sent) == (2, False, [b"0", b"1"])
    done = import_file(client, "q", tmp_path / "file", namespace="ns")
    assert (done.accepted, done.passed_over) == (3, 2)
    assert sent == [b"0", b"1", b"2", b"3", b"4"]


def test_an_import_that_is_stopped_while_its_last_messages_are_sent_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no note any more: run again, it would send all of them again."""
    with MessageWriter(tmp_path / "file", {}) as writer:
        writer.write(section.encode_message(b"0"), 0)
        writer.finish()
    stopped: list[bool] = []

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        stopped.append(True)
        return [None] * len(payloads)

    client: Any = SimpleNamespace(namespace_id="one", peer_properties={})
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    done = import_file(client, "q", tmp_path / "file", namespace="ns", is_stopped=lambda: bool(stopped))
    assert (done.accepted, done.complete) == (1, True)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_removal_that_fails_shows_that_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remove(*_: Any, **__: Any) -> None:
        raise IsthmusError("gone")

    monkeypatch.setattr(carry, "messages", lambda *_: [section.encode_message(b"0")])
    monkeypatch.setattr(carry, "remove", remove)
    client: Any = None
    with pytest.raises(IsthmusError) as failed:
        carry.export(client, "q", tmp_path / "file", lambda _: True, namespace="ns", remove_after=True)
    assert failed.value.__notes__ == [f"'{tmp_path / 'file'}' is written, with 1 messages"]
    assert (tmp_path / "file").exists()
