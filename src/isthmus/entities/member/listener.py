"""Listeners of one entity, called one after the other.

What it is: the common function that calls all listeners. What it is not: the listeners.

Invariants:
    I1. Each is called, whatever another one raises: a skipped one would wait until the entity's next change.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.entities.storage.staging import Callback

__all__ = ["call_all"]


def call_all(listeners: Iterable[Callback]) -> None:
    """Call listeners, one after the other.

    Args:
        listeners: iterated while they are called; a list that may change meanwhile is passed as a copy.

    Raises:
        Exception: the error of one, once all of them have been called.
        ExceptionGroup: the errors of several.
    """
    faults: list[Exception] = []
    for listener in listeners:
        try:
            listener()
        except Exception as fault:  # noqa: BLE001 - see I1
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise ExceptionGroup("listeners", faults)
