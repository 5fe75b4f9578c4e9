"""isthmus.cli.live."""

from __future__ import annotations

import os
import sys

import pytest

from isthmus.cli.live import show_repeatedly


def test_each_table_reaches_a_pipe_as_soon_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """`… --watch | tee log` showed nothing until its end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    made = iter(["first", "second"])

    def table() -> str:
        if (found := next(made, "")) == "second":
            assert os.read(reading, 100) == b"first\n"
        if not found:
            raise KeyboardInterrupt
        return found

    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(KeyboardInterrupt):
            show_repeatedly(table)
    assert os.read(reading, 100) == b"second\n"
    os.close(reading)
