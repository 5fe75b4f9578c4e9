"""Warnings of a run about remains of earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.supervisor.claim.folder_lock import locked_folder
from isthmus.supervisor.left import warn_of_left
from isthmus.topology import read
from isthmus.topology.file.name import state_folder


def test_spools_and_folders_that_no_run_continues_with_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "prod.yaml"
    text = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
    file.write_text(f"{text}tasks:\n  t: {{pattern: copy, source: ewr, target: jfk, topic: a}}\n")
    folder, former = state_folder(file), state_folder(tmp_path / "isthmus.yaml")
    for each in (folder, former):
        with locked_folder(each):
            pass
        writer = SpoolWriter(each / "spools" / "gone.ewr.jfk" / "in").open()
        writer.append([Record("ewr/gone id", 1, 1, b"m")])
        writer.sync()
        writer.close()
    warn_of_left(read(file.read_text(), str(file)), folder)
    spool, renamed = caplog.messages
    assert spool.startswith(f"spool {folder}/spools/gone.ewr.jfk/in has 1 messages that were taken from their source")
    assert renamed.startswith(f"{former} is the state folder of a file that does not exist any more")
    assert f"rename the folder to {folder}" in renamed
