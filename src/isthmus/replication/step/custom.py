"""The steps `python` and `sql`.

What it is: finding and applying the operator's functions, and a SELECT over the rows that keeps the columns it does not
name. What it is not: the check that they only use what a lease supports (`narrow`).

Invariants:
    I1. A name without a function is refused before anything starts, with the name that was searched.
    I2. A SELECT loses no column of the rows, and no disposition of an earlier step.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isthmus.bridge.delivery_event import DIVERT, Disposition
from isthmus.errors import InvalidArgumentError
from isthmus.message.column import COLUMNS
from isthmus.replication.step.base import MessageStep, Settings, disposition_of, failure_of
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.step.divert import divert_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["find_function", "frame_function", "frame_select", "needed_columns", "open_function"]

_VIEW = "rows"
_KEPT = "_isthmus_"
_SELECT = re.compile(r"\s*select\s", re.IGNORECASE)
_MARKS = ("disposition", "reason", "description")


def find_function(name: str) -> Callable[..., Any]:
    """The function that `package.module:function` names.

    Raises:
        InvalidArgumentError: there is no such function.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InvalidArgumentError(f"'{name}': write package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidArgumentError(f"'{name}': the module cannot be imported ({error})") from None
    found: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(found):
        raise InvalidArgumentError(f"'{name}': {module_name} has no function {function_name}")
    return found


def open_function(settings: Settings) -> MessageStep:
    """The step `python` with `takes: message`; see `isthmus.topology.step.custom.PythonStep`."""
    function = find_function(settings["function"])
    failure = failure_of(settings)
    known = {"complete": "drop", "dead-letter": "dead-letter"}
    known |= {DIVERT: failure} if divert_of(settings) is not None else {}

    def step(message: StepMessage) -> Disposition | None:
        result = function(message)
        if result is None:
            return None
        kind, reason = result
        if kind not in known:
            raise ValueError(f"it returned the disposition {kind!r}; known are {' and '.join(known)}")
        return disposition_of(known[kind], str(reason), f"step python {settings['function']}")

    return step


def needed_columns(kind: str, settings: Settings) -> tuple[str, ...]:
    """The columns that a DataFrame step needs besides the raw ones."""
    if kind == "python":
        return tuple(settings.get("columns") or ("body",))
    if kind == "filter":
        return COLUMNS
    words = set(re.findall(r"\w+", settings["select"]))
    return tuple(name for name in COLUMNS if name in words)


def frame_function(rows: DataFrame, settings: Settings) -> DataFrame:
    """The step `python` with `takes: rows`.

    Raises:
        InvalidArgumentError: there is no such function, or it has dropped the dispositions of earlier steps.
    """
    from pyspark.sql import functions as F

    before = rows.withColumns({_KEPT + name: F.col(name) for name in _MARKS})
    made: DataFrame = find_function(settings["function"])(before)
    lost = [name for name in _MARKS if _KEPT + name not in made.columns]
    if lost:
        raise InvalidArgumentError(
            f"'{settings['function']}' has dropped columns that it did not add: write rows.withColumns, not rows.select"
        )
    marks = {name: F.coalesce(F.col(_KEPT + name), F.col(name)) for name in _MARKS if name in made.columns}
    marks |= {name: F.col(_KEPT + name) for name in _MARKS if name not in made.columns}
    return made.withColumns(marks).drop(*(_KEPT + name for name in _MARKS))


def frame_select(rows: DataFrame, settings: Settings) -> DataFrame:
    """The step `sql`."""
    from pyspark.sql import functions as F

    before = rows.columns
    kept = ", ".join(f"`{name}` AS `{_KEPT}{name}`" for name in before)
    rows.createOrReplaceTempView(_VIEW)
    try:
        selected = rows.sparkSession.sql(_SELECT.sub(lambda match: f"{match[0]}{kept}, ", settings["select"], count=1))
    finally:
        rows.sparkSession.catalog.dropTempView(_VIEW)
    # Of several columns with one name the last one is used, as `SELECT *, upper(subject) AS subject` suggests.
    positions = {name: position for position, name in enumerate(selected.columns)}
    unique = selected.toDF(*(f"c{position}" for position in range(len(selected.columns))))
    columns = []
    for name in dict.fromkeys((*before, *(each for each in positions if not each.startswith(_KEPT)))):
        old = F.col(f"c{positions[_KEPT + name]}") if name in before else None
        new = F.col(f"c{positions[name]}") if name in positions else None
        if old is None or (name not in ("message", "route", "position", *_MARKS) and new is not None):
            found = new
        else:
            found = F.coalesce(old, new) if name in _MARKS and new is not None else old
        assert found is not None
        columns.append(found.alias(name))
    return unique.select(*columns)
