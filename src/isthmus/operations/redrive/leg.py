"""The targets of routes for messages of several namespaces, opened as needed.

What it is: for each namespace of origin, one `CopyTarget` for each route, since the target notes that namespace in the copies.
What it is not: the sending.

Invariants:
    I1. The targets of at most `NAMESPACES_AT_ONCE` namespaces are open together, however many the messages name: the namespace is in the
        message, and any sender of the queue can write another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Self

from isthmus.bridge.route_spec import RouteSpec
from isthmus.operations.copy_target import CopyTarget
from isthmus.replication.step.base import NamedStep

__all__ = ["NAMESPACES_AT_ONCE", "Leg", "Legs"]

NAMESPACES_AT_ONCE = 4
"""A federation's file has one namespace for each entry point of messages; another identity of it is from before it was recreated."""


class Leg(NamedTuple):
    """A route's name, its target, and its steps."""

    route: str
    target: CopyTarget
    steps: Sequence[NamedStep]


class Legs:
    """The targets of messages, by their namespace of origin.

    Args:
        made: the routes, and the steps of each.
        origins: identities of the namespaces; not empty.
    """

    def __init__(self, made: Sequence[tuple[RouteSpec, Sequence[NamedStep]]], origins: Collection[str]) -> None:
        self._made = made
        self._origins = frozenset(origins)
        self._first = min(origins)
        self._open: OrderedDict[str, tuple[ExitStack, list[Leg]]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1][0].close()

    def __contains__(self, origin: str) -> bool:
        return origin in self._origins

    def of(self, origin: str | None, meanwhile: Callable[[], None] = lambda: None) -> list[Leg]:
        """The legs of messages of a namespace; None if all are from one.

        Args:
            origin: its identity.
            meanwhile: called repeatedly while they are opened.

        Raises:
            TargetGoneError: a target is unreachable, or refuses.
        """
        key = self._first if origin is None else origin
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key][1]
        if len(self._open) >= NAMESPACES_AT_ONCE:
            self._open.popitem(last=False)[1][0].close()
        with ExitStack() as stack:
            legs = [
                Leg(spec.name, stack.enter_context(CopyTarget(spec, key, meanwhile=meanwhile)), steps)
                for spec, steps in self._made
            ]
            self._open[key] = stack.pop_all(), legs
        return legs
