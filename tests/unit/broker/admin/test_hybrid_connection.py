"""Hybrid connections over the administration API, without HTTP."""

from __future__ import annotations

import pytest

from isthmus.broker.admin.address import Address
from isthmus.broker.admin.atom import ATOM, SERVICE_BUS
from isthmus.broker.admin.document import Node, read
from isthmus.broker.admin.failure import PreconditionError
from isthmus.broker.admin.operation import Operations
from isthmus.broker.admin.request import Answer, Request
from isthmus.entities import Engine
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

RULE = (
    "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Listen</AccessRights></Rights>"
    "<KeyName>service</KeyName><PrimaryKey>p</PrimaryKey></AuthorizationRule></AuthorizationRules>"
)


class Api:
    def __init__(self) -> None:
        self.engine = Engine(MemoryJournal(), ManualClock())
        self.operations = Operations(self.engine, ManualClock(), "ewr", 1 << 20, {"Stock": 3}.__getitem__)

    def request(self, path: str, body: str = "", **more: str) -> Request:
        return Request(Address.parse(path), "https://h", "2016-07", body.encode(), **more)

    def put(self, path: str, inside: str = "", if_match: str | None = None) -> Answer:
        kind = "HybridConnectionDescription"
        body = f'<entry xmlns="{ATOM}"><content><{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
        return self.operations.put(self.request(path, body, if_match=if_match))

    def get(self, path: str, **more: str) -> Node:
        return read(self.operations.get(self.request(path, **more)).body.encode())

    def shown(self, path: str) -> dict[str, str]:
        [described] = self.get(path).find("content").children
        return {child.name: child.text for child in described.children}


@pytest.fixture
def api() -> Api:
    return Api()


def test_one_is_made_shown_listed_changed_and_removed_i1(api: Api) -> None:
    api.operations = Operations(api.engine, ManualClock(), "ewr", 1 << 20, lambda name: 3)
    answer = api.put("Stock", "<RequiresClientAuthorization>false</RequiresClientAuthorization>" + RULE)
    assert answer.status == 201
    shown = api.shown("stock")
    assert (shown["RequiresClientAuthorization"], shown["ListenerCount"], shown["Status"]) == ("false", "3", "Active")
    assert api.engine.hybrid_connections.get("stock").authorization_rules[0].primary_key == "p"
    api.put("other")
    listed = api.get("$Resources/hybridconnections").find_all("entry")
    assert [entry.find_text("title") for entry in listed] == ["other", "Stock"]
    chosen = api.get("$Resources/HybridConnections", filter="startswith(path, 'S') eq true").find_all("entry")
    assert [entry.find_text("title") for entry in chosen] == ["Stock"]
    api.put("Stock", "<UserMetadata>ours</UserMetadata>", if_match="*")
    assert (api.shown("Stock")["RequiresClientAuthorization"], api.shown("Stock")["UserMetadata"]) == ("true", "ours")
    api.operations.delete(api.request("stock"))
    assert "stock" not in api.engine.hybrid_connections


def test_refusals_change_nothing_i2(api: Api) -> None:
    api.engine.create_queue("orders")
    api.put("Stock")
    before = api.engine.hybrid_connections.row("stock")
    for path, inside, if_match, expected in (
        ("stock", "", None, EntityExistsError),
        ("orders", "", None, EntityExistsError),
        ("none", "", "*", EntityNotFoundError),
        ("stock", "<Status>SendDisabled</Status>", "*", InvalidArgumentError),
        ("stock", "<RequiresClientAuthorization>perhaps</RequiresClientAuthorization>", "*", InvalidArgumentError),
        ("stock", "", '"1"', PreconditionError),
    ):
        with pytest.raises(expected):
            api.put(path, inside, if_match)
    assert api.engine.hybrid_connections.row("stock") == before
    assert api.engine.hybrid_connections.names() == ["Stock"]
