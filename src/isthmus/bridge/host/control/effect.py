"""The effects of a query's account, from readers' messages and the driver's requests.

What it is: values that the thread of the control port carries out (`control.loop`). What it is not: the decisions (`control.account`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isthmus.bridge.frame import Kind
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec

__all__ = ["Add", "Assign", "Death", "Effect", "Grant", "Plan", "SendFrame"]


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
    """Send GRANT: how much longer each claim is held."""

    reader: int
    asked: int
    claims: tuple[str, ...]


class SendFrame(NamedTuple):
    """Send a frame."""

    reader: int
    kind: Kind
    payload: bytes


class Death(NamedTuple):
    """A process of the query died: the last report of each route that it carried, with counts as in `QueryAccount.reports`; an empty
    report of those that had nothing in flight.
    """

    reports: Mapping[str, RouteReport]


Effect = Assign | Add | Plan | Grant | SendFrame | Death
