"""The step `enrich`.

What it is: reference data as one mapping in memory, read again when its file has changed, or at intervals from a database, and its columns
added to JSON bodies. It is a look-up in the worker and not a join of Spark: a lease is one micro-batch of an hour, for which Spark would
read the data once. What it is not: reading the data (`reference`).

Invariants:
    I1. If data cannot be read again, the previous data stays in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.replication.step.base import MessageStep, Settings, StepRefusalError
from isthmus.replication.step.message.field import ABSENT, put, reader
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.reference.database import DatabaseQuery
from isthmus.replication.step.reference.file import load_reference
from isthmus.replication.step.reference.repeated import Repeated
from isthmus.replication.step.reference.value import Reference, text_of
from isthmus.replication.step.watched_file import WatchedFile
from isthmus.topology.step.enrich import EVERY_MS, join_of

__all__ = ["NO_REFERENCE_DATA", "open_enrich"]

NO_REFERENCE_DATA = "NoReferenceData"


def open_enrich(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.enrich.EnrichStep`."""
    field, key = join_of(settings["on"])
    columns = settings["columns"]
    names = [settings.get("prefix", "") + name for name in columns]
    data = _data(settings, key, columns)
    value_of = reader(field)
    fails = settings["missing"] == "fail"

    def step(message: StepMessage) -> Disposition | None:
        value = value_of(message)
        is_absent = value is ABSENT or value is None
        found = None if is_absent else data.get().get(text_of(value))
        if found is None:
            if fails:
                why = "the message does not have it" if is_absent else f"it is {text_of(value)!r}"
                raise StepRefusalError(NO_REFERENCE_DATA, f"there is no reference data for {field}: {why}")
            return None
        body = message.json_object()
        for name, each in zip(names, found, strict=True):
            put(body, name, each)
        message.touch_json()
        return None

    return step


def _data(settings: Settings, key: str, columns: Sequence[str]) -> WatchedFile[Reference] | Repeated[Reference]:
    if settings.get("from"):
        return WatchedFile(settings["from"], lambda path: load_reference(path, key, columns))
    query = DatabaseQuery(settings["database"], settings["query"], key, columns)
    return Repeated(query, (settings.get("every") or EVERY_MS) / 1000, "the reference data of a database")
