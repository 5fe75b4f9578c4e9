from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.broker.admin.address import Address, Resource
from isthmus.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("/", Address(Resource.ROOT)),
        ("", Address(Resource.ROOT)),
        ("/$namespaceinfo", Address(Resource.NAMESPACE)),
        ("/$Resources/queues", Address(Resource.QUEUES)),
        ("/$resources/Topics/", Address(Resource.TOPICS)),
        ("/queue", Address(Resource.ENTITY, "queue")),
        ("/a%2Fb", Address(Resource.ENTITY, "a/b")),
        ("/a/b/", Address(Resource.ENTITY, "a/b")),
        ("/t/subscriptions", Address(Resource.SUBSCRIPTIONS, "t")),
        ("/t/Subscriptions/", Address(Resource.SUBSCRIPTIONS, "t")),
        ("/t/subscriptions/s", Address(Resource.SUBSCRIPTION, "t", "s")),
        ("/a%2fb/subscriptions/s/", Address(Resource.SUBSCRIPTION, "a/b", "s")),
        ("/t/subscriptions/s/rules", Address(Resource.RULES, "t", "s")),
        ("/t/SUBSCRIPTIONS/s/RULES/%24Default", Address(Resource.RULE, "t", "s", "$Default")),
        ("/subscriptions", Address(Resource.ENTITY, "subscriptions")),
        ("/t%2Fsubscriptions%2Fs", Address(Resource.ENTITY, "t/subscriptions/s")),
    ],
)
def test_reads(raw: str, address: Address) -> None:
    assert Address.parse(raw) == address


@pytest.mark.parametrize(
    "raw",
    [
        "/$Resources",
        "/$Resources/hubs",
        "/t/subscriptions/s/x",
        "/t/subscriptions/s/rules/r/x",
        "/a%3Fb",
        "/a%23",
        "/a%2541",
        "/%00",
        "/%2F",
    ],
)
def test_refuses(raw: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Address.parse(raw)


def test_paths_have_the_capitals_that_clients_expect() -> None:
    assert Address.parse("/t/subscriptions/s/rules/r").path == "t/Subscriptions/s/Rules/r"
    assert Address.parse("/t/subscriptions/s").path == "t/Subscriptions/s"


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_i1_the_path_names_the_same_resource_again(raw: str) -> None:
    try:
        address = Address.parse("/" + raw)
    except InvalidArgumentError:
        return
    if "subscriptions" not in address.entity.lower():
        again = Address.parse("/" + address.path)
        assert again == address
