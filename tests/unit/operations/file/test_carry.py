"""Messages of a file sent to an entity, against a scripted target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.errors import IsthmusError
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.file import carry
from isthmus.operations.file.carry import import_file
from isthmus.operations.file.message_file import MessageWriter


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

    client: Any = None
    monkeypatch.setattr(carry, "Sender", lambda *_: Target())
    monkeypatch.setattr(carry, "deliver", deliver)
    with pytest.raises(UnconfirmedError) as lost:
        import_file(client, "q", tmp_path / "file", namespace="ns")
    assert lost.value.__notes__ == [f"message 2 of '{tmp_path / 'file'}'"]
    done = import_file(client, "q", tmp_path / "file", namespace="ns")
    assert (done.accepted, done.passed_over, sent) == (1, 2, [b"0", b"1", b"2", b"1"])
