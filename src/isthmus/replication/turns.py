"""The two queries of a route that takes turns.

What it is: how the pair is started: the options and the checkpoint folder of each. What it is not: the turns themselves,
which the leases take (`isthmus.connectors.servicebus.turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.connectors.servicebus.turn import FIRST, SECOND, prepare_turns

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["start_turns"]

_TURNS = "turns"


def start_turns(checkpoint: Path, start: Callable[[Mapping[str, str], Path], StreamingQuery]) -> list[StreamingQuery]:
    """Start both queries.

    Args:
        checkpoint: the route's checkpoint folder; the first query's, and that of the second lies in it.
        start: starts a query with these further options of its source, and this checkpoint folder.
    """
    folder = checkpoint.absolute() / _TURNS
    prepare_turns(folder)
    started: list[StreamingQuery] = []
    try:
        for name, place in ((FIRST, checkpoint), (SECOND, checkpoint / SECOND)):
            started.append(start({"settle": "sink", "turns": str(folder), "turn": name}, place))
    except BaseException:
        for query in started:
            query.stop()
        raise
    return started
