"""The steps `map` and `reduce`: other fields, and fewer."""

from __future__ import annotations

import copy
from typing import Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.replication.step.base import MessageStep, Settings
from isthmus.replication.step.message.field import ABSENT, put, reader, take_out
from isthmus.replication.step.message.message import StepMessage
from isthmus.rules import REMOVED

__all__ = ["open_map", "open_reduce"]

_PROPERTY = "property:"


def open_map(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.body.MapStep`."""
    fields = [(name, reader(source)) for name, source in settings["fields"].items()]
    keeps = settings["keep"]

    def step(message: StepMessage) -> Disposition | None:
        values = [(name, value_of(message)) for name, value_of in fields]
        made: dict[str, Any] = copy.deepcopy(message.json_object()) if keeps else {}
        for name, value in values:
            if value is not ABSENT:
                put(made, name, value)
        message.json = made
        return None

    return step


def open_reduce(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.body.ReduceStep`."""
    if settings.get("keep"):
        return open_map({"fields": {name: name for name in settings["keep"]}, "keep": False})
    removed = settings["remove"]
    fields = [name for name in removed if not name.startswith(_PROPERTY)]
    properties = [name.removeprefix(_PROPERTY) for name in removed if name.startswith(_PROPERTY)]

    def step(message: StepMessage) -> Disposition | None:
        if fields:
            body = message.json_object()
            for name in fields:
                take_out(body, name)
            message.touch_json()
        for name in properties:
            message.set_application_property(name, REMOVED)
        return None

    return step
