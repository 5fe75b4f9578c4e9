"""Which rows came through Spark to the sink.

What it is: the account of flush rows: how many messages were handed on before each, and the last one that the sink has
answered. A message handed on before an answered flush row, and not settled, was removed by a step of the query. What it
is not: the pushing itself (`outflow`).
"""

from __future__ import annotations

from collections import deque

from isthmus.connectors.servicebus.ledger import Ledger, Span

__all__ = ["FlushAccount"]


class FlushAccount:
    """The flush rows of one lease; `push` is called by the reader's thread, all else by the lease's.

    Args:
        ledger: what is outstanding.

    Attributes:
        pushed_rows: messages that the reader had yielded before the last flush row.
        answered: the last flush row that the sink answered.
        finish: the last flush row of all; 0 until it is known.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.pushed_rows = 0
        self.answered = 0
        self.finish = 0
        self._ledger = ledger
        self._rows: dict[int, int] = {}
        self._handed = 0
        self._marks: deque[tuple[int, int]] = deque()  # rows handed on in all, and the delivery id behind them

    def push(self, number: int, rows: int) -> None:
        """The reader pushed flush row `number` after having yielded `rows` messages in all."""
        self._rows[number] = rows
        self.pushed_rows = rows

    def handed_on(self, rows: int, behind: int) -> None:
        """Rows were given to the reader; `behind` is the delivery id after the last."""
        self._handed += rows
        self._marks.append((self._handed, behind))

    def answer(self, number: int) -> None:
        """The sink answered flush row `number`."""
        self.answered = max(self.answered, number)

    @property
    def is_finished(self) -> bool:
        """Whether the last flush row of all has been answered."""
        return self.answered >= self.finish > 0

    def dropped(self) -> list[Span]:
        """What passed a flush row's place and was not settled: a step of the query removed it."""
        rows = self._rows.get(self.answered, 0)
        while len(self._marks) > 1 and self._marks[1][0] <= rows:
            self._marks.popleft()
        if not self._marks or self._marks[0][0] > rows:
            return []
        behind = self._marks[0][1]
        return [span for span in self._ledger.spans() if span.last_id < behind]

    def dropped_rows(self) -> int:
        """How many messages those are."""
        return sum(len(span.tokens) for span in self.dropped())
