"""The output of the verb replay for interrupted work."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.cli.app import main
from isthmus.operations.replay import Replayed
from isthmus.replication import namespace_clients

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
tasks:
  kept: {pattern: archive, source: ewr, topic: flights, table: lake}
"""


@pytest.mark.parametrize("options", [(), ("--json",), ("--name", "again")])
def test_a_replay_that_is_killed_has_reported_its_name(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it another run gives the messages other ids, and what was sent is in the target twice."""
    given: list[str] = []

    def replay(client: object, entity: str, table: Path, wanted: SimpleNamespace, **_: object) -> None:
        given.append(wanted.name)
        reported.append(capsys.readouterr())
        raise KeyboardInterrupt

    reported: list[tuple[str, str]] = []
    monkeypatch.setattr(
        namespace_clients.NamespaceClients, "open", lambda *_: SimpleNamespace(close=lambda seconds: None)
    )
    monkeypatch.setattr("isthmus.operations.replay.outside", lambda *_: 0)
    monkeypatch.setattr("isthmus.operations.replay.replay", replay)
    (tmp_path / "isthmus.yaml").write_text(TEXT)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        main(["replay", str(tmp_path / "isthmus.yaml"), "kept", "ewr/orders", "--yes", *options])
    out, err = reported[0]
    assert out == ""
    assert (re.findall(r"--name (\w+)", err) == given) is ("--name" not in options)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("is_cut", [True, False])
def test_ctrl_c_ends_a_replay_in_good_order(
    is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def replay(*_: object, is_stopped: Callable[[], bool], **__: object) -> Replayed:
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        return Replayed(chosen=150, sent=100, is_cut=is_cut)

    monkeypatch.setattr(
        namespace_clients.NamespaceClients, "open", lambda *_: SimpleNamespace(close=lambda seconds: None)
    )
    monkeypatch.setattr("isthmus.operations.replay.outside", lambda *_: 0)
    monkeypatch.setattr("isthmus.operations.replay.replay", replay)
    (tmp_path / "isthmus.yaml").write_text(TEXT)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(tmp_path / "isthmus.yaml"), "kept", "ewr/orders", "--yes", "--name", "first"])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == (130 if is_cut else 0)
    more = "; interrupted: --name first gives them the same ids again" if is_cut else ""
    assert out == f"100 messages were sent to ewr/orders; name of the replay: first{more}\n"
    assert err.startswith("interrupted: ")


def test_a_replay_whose_notes_cannot_be_written_is_not_to_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `isthmus replay … >log 2>&1` on a full disk."""
    monkeypatch.setattr(
        namespace_clients.NamespaceClients, "open", lambda *_: SimpleNamespace(close=lambda seconds: None)
    )
    monkeypatch.setattr("isthmus.operations.replay.outside", lambda *_: 7)
    monkeypatch.setattr("isthmus.operations.replay.replay", lambda *_, **__: Replayed(chosen=100, sent=100))
    (tmp_path / "isthmus.yaml").write_text(TEXT)
    with open("/dev/full", "w") as output, open("/dev/full", "w") as errors, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        patch.setattr("sys.stderr", errors)
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(tmp_path / "isthmus.yaml"), "kept", "ewr/orders", "--yes", "--name", "first"])
        for each in (output, errors):  # what they refused is refused again as they are closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), each.fileno())
    assert not ended.value.code
