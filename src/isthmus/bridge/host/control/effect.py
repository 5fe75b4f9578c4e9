"""What follows from what readers say and the driver wishes: the effects of a query's account.

What it is: values that the thread of the control port carries out (`control.loop`). What it is not: the decisions (`control.account`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isthmus.bridge.frame import Kind
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["Add", "Assign", "Death", "Effect", "Grant", "Plan", "Tell"]


class Assign(NamedTuple):
    """Send ASSIGN with the plans of the routes."""

    reader: int
    routes: tuple[RouteSpec, ...]
    lease_seconds: float


class Add(NamedTuple):
    """Send ADD with the plan of the route."""

    reader: int
    route: RouteSpec


class Plan(NamedTuple):
    """Send PLAN of the route."""

    reader: int
    name: str


class Grant(NamedTuple):
    """Send GRANT: for how long each claim is held now."""

    reader: int
    asked: int
    claims: tuple[str, ...]


class Tell(NamedTuple):
    """Send a frame."""

    reader: int
    kind: Kind
    payload: bytes


class Death(NamedTuple):
    """A process of the query died: what was reported last of each route that it carried, with counts as in `QueryAccount.reports`; an empty
    report of those that had nothing under way.
    """

    reports: Mapping[str, RouteReport]


Effect = Assign | Add | Plan | Grant | Tell | Death
