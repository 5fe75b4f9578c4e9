"""isthmus.connectors.checkpoint.checkpoint"""

from __future__ import annotations

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.connectors.system import removed_before


@pytest.mark.parametrize(
    ("checkpoint", "is_numbered"),
    [
        (Checkpoint(0, "0"), True),
        (Checkpoint(-1, START_OFFSET), True),
        (Checkpoint(-1), True),
        (Checkpoint(-1, "4096"), False),
    ],
)
def test_an_offset_alone_shows_no_sequence_number(checkpoint: Checkpoint, is_numbered: bool) -> None:
    assert checkpoint.is_numbered is is_numbered


def test_what_was_removed_is_before_what_exists() -> None:
    assert removed_before({0: 5, 1: 3, 2: 9}, {0: 2, 1: 3, 3: 0}) == {0: (2, 5)}
