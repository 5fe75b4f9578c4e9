"""Messages to be enqueued later.

What it is: the annotation of a scheduled message, added without a change to the application's object. What it is not: the
SDK's scheduling by a management request, which returns a sequence number and needs the namespace immediately.
Specification: Microsoft Learn, "Message sequencing and timestamps" (scheduled messages).
"""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

from isthmus.client import sdk

__all__ = ["scheduled"]


def scheduled(messages: Any, schedule_time_utc: datetime) -> list[Any]:
    """The messages with the time at which they are to be enqueued."""
    when = sdk.schedule_annotations(schedule_time_utc)
    made = []
    for each in sdk.message_list(messages):
        changed = copy.copy(each)
        changed.annotations = {**(each.annotations or {}), **when}
        made.append(changed)
    return made
