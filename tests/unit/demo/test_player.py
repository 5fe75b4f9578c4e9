"""A process of the demo that ends too early."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isthmus.demo.player import Player, PlayerError

FAILS = "import sys; sys.exit('no room')"


def test_the_end_of_a_process_ends_the_wait_for_what_it_writes(tmp_path: Path) -> None:
    began = time.monotonic()
    for number in range(5):
        player = Player("board", ["-c", FAILS], tmp_path / f"{number}.log")
        with pytest.raises(PlayerError, match="board did not write 'ready': no room"):
            player.wait_for("ready", 60.0)
        assert player.join(10.0) == 1
    assert time.monotonic() - began < 60.0


def test_what_is_said_to_a_process_that_has_ended_is_an_error(tmp_path: Path) -> None:
    player = Player("publisher", ["-c", FAILS], tmp_path / "log")
    with pytest.raises(PlayerError, match="'ready'"):
        player.wait_for("ready", 60.0)
    player._process.wait()
    with pytest.raises(PlayerError, match="publisher has ended: no room"):
        player.say(limit=1)
    assert player.join(10.0) == 1
