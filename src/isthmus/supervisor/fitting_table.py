"""A table that fits the terminal.

What it is: a renderable of rich that shows rows side by side where the terminal is wide enough, and one below the other where it is
not, so that no name, id or number is cut off. Columns without a value in any row are left out. What it is not: a format for
programs; those read `--json`.

Invariants:
    I1. Every cell is shown whole, at any width.
    I2. If the output is not a terminal, every row is one line (and its notes), whatever the width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

__all__ = ["FittingTable"]

_GAP = 2
_INDENT = "  "


class _Column(NamedTuple):
    heading: str
    is_right: bool


class _Row(NamedTuple):
    cells: tuple[Text, ...]
    notes: tuple[Text, ...]


class FittingTable:
    """A table.

    Args:
        *headings: of columns; one that begins with ">" is right-aligned.
        title: a line above.
        names: how many of the first columns identify a row; they are in the first line of a stacked row, without headings.
    """

    def __init__(self, *headings: str, title: str | Text = "", names: int = 2) -> None:
        self._columns = [_Column(heading.removeprefix(">"), heading.startswith(">")) for heading in headings]
        self._title = title
        self._names = names
        self._rows: list[_Row] = []

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def add_row(self, *cells: str | Text, notes: tuple[str | Text, ...] = ()) -> None:
        """Append a row.

        Args:
            *cells: one for each column; a cell may have several lines.
            notes: sentences about the row, below it.
        """
        self._rows.append(_Row(tuple(map(_text, cells)), tuple(map(_text, notes))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._title:
            yield _text(self._title)
        shown = [
            index
            for index in range(len(self._columns))
            if index < self._names or any(row.cells[index].plain for row in self._rows)
        ]
        widths = [
            max([cell_len(self._columns[index].heading), *(_width(row.cells[index]) for row in self._rows)])
            for index in shown
        ]
        if console.is_terminal and sum(widths) + _GAP * (len(widths) - 1) > options.max_width:
            yield from self._stacked(shown, console, options.max_width)
        else:
            yield from self._side_by_side(shown, widths)

    def _side_by_side(self, shown: list[int], widths: list[int]) -> Iterator[Text]:
        headings = [self._columns[index].heading for index in shown]
        if any(headings):
            yield self._line([Text(heading, style="bold") for heading in headings], shown, widths)
        for row in self._rows:
            cells = [row.cells[index].split("\n") if row.cells[index].plain else [Text()] for index in shown]
            for lines in itertools.zip_longest(*cells, fillvalue=Text()):
                yield self._line(list(lines), shown, widths)
            yield from (Text(_INDENT) + note for note in row.notes)

    def _line(self, cells: list[Text], shown: list[int], widths: list[int]) -> Text:
        line = Text()
        for number, (cell, index, width) in enumerate(zip(cells, shown, widths, strict=True)):
            blank = " " * (width - cell_len(cell.plain))
            is_last = number == len(shown) - 1
            line.append(" " * _GAP if number else "")
            if self._columns[index].is_right:
                line.append(blank).append_text(cell)
            else:
                line.append_text(cell).append("" if is_last else blank)
        line.rstrip()
        return line

    def _stacked(self, shown: list[int], console: Console, width: int) -> Iterator[Text]:
        for row in self._rows:
            names = [row.cells[index] for index in shown[: self._names] if row.cells[index].plain]
            yield from Text(" " * _GAP).join(names).wrap(console, width, overflow="fold")
            details = [
                Text.assemble((f"{self._columns[index].heading} " if self._columns[index].heading else "", "dim"), part)
                for index in shown[self._names :]
                for part in row.cells[index].split("\n")
                if part.plain
            ]
            for text in (*([Text(", ").join(details)] if details else []), *row.notes):
                for line in text.wrap(console, width - len(_INDENT), overflow="fold"):
                    line.rstrip()
                    yield Text(_INDENT) + line


def _text(cell: str | Text) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(cell)


def _width(cell: Text) -> int:
    return max(map(cell_len, cell.plain.split("\n")))
