"""Messages of a file sent to an entity, against a scripted target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.errors import IsthmusError
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
        """Nothing is held."""


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

    client: Any = SimpleNamespace(namespace_id="one")
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    with pytest.raises(UnconfirmedError) as lost:
        import_file(client, "q", tmp_path / "file", namespace="ns")
    assert lost.value.__notes__ == [f"message 2 of '{tmp_path / 'file'}'"]
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
    first, second = (SimpleNamespace(namespace_id=each) for each in ("one", "two"))
    client: Any = first
    with pytest.raises(KeyboardInterrupt):
        import_file(client, "q", tmp_path / "file", namespace="ns")
    is_lost.append(False)
    client = second
    done = import_file(client, "q", tmp_path / "file", namespace="ns")
    assert (done.accepted, done.passed_over) == (1, 0)
