"""isthmus.connectors.servicebus.administration.read_condition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from azure.core.pipeline.transport import HttpRequest

from isthmus.connectors.servicebus.administration.read_condition import ReadCondition

READ = HttpRequest("GET", "https://host/orders?api-version=2021-05")


def answer(server: str = "isthmus") -> SimpleNamespace:
    return SimpleNamespace(headers={"Server": server, "ETag": '"7"'})


def update(path: str = "Orders", if_match: str | None = "*") -> HttpRequest:
    headers = {"If-Match": if_match} if if_match else {}
    return HttpRequest("PUT", f"https://host/{path}?api-version=2021-05", headers)


def test_an_update_goes_only_where_the_entity_is_as_it_was_read() -> None:
    condition, request = ReadCondition(), update()
    with condition.required():
        condition.note(READ, answer())
        for _ in range(2):  # the client sends one request object again
            condition.put_into(request)
            assert request.headers["If-Match"] == '"7"'


@pytest.mark.parametrize(
    ("server", "request_"),
    [
        ("Microsoft-HTTPAPI/2.0", update()),
        ("isthmus", update("others")),
        ("isthmus", update(if_match=None)),  # a creation
    ],
)
def test_i1_no_other_request_has_the_condition(server: str, request_: HttpRequest) -> None:
    condition, before = ReadCondition(), dict(request_.headers)
    with condition.required():
        condition.note(READ, answer(server))
        condition.put_into(request_)
    assert dict(request_.headers) == before


def test_i1_the_condition_is_that_of_the_last_reading() -> None:
    condition = ReadCondition()
    with condition.required():
        condition.note(READ, answer())
        condition.note(HttpRequest("GET", "https://host/others"), answer())
        condition.put_into(request := update())
        assert request.headers["If-Match"] == "*"
    with condition.required():
        condition.put_into(request := update("others"))
        assert request.headers["If-Match"] == "*", "what was read for another change is not read for this one"
