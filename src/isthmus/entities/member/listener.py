"""Listeners of one entity, called one after the other.

What it is: the one way in which several who wait are called. What it is not: who they are, or what they wait for.

Invariants:
    I1. Each is called, whatever another one raises: whoever was passed over would wait until the entity has news again.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.entities.storage.staging import Callback

__all__ = ["call_all"]


def call_all(listeners: Iterable[Callback]) -> None:
    """Call listeners, one after the other.

    Args:
        listeners: taken one by one; a list that may change meanwhile is given as a copy.

    Raises:
        Exception: what one raised, once all of them have been called.
        ExceptionGroup: what several raised.
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
