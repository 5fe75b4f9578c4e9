"""Lists that change while they are read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ServiceResponseError

from harness.fixture.paged_list import paged
from isthmus.connectors.servicebus.administration import listing
from isthmus.connectors.servicebus.administration.listing import listed


def named(count: int, prefix: str = "q") -> list[Any]:
    return [SimpleNamespace(name=f"{prefix}{number:04}") for number in range(count)]


def names_of(items: list[Any], on_page: Callable[[int], None] = lambda skip: None, most: int = 100) -> list[str]:
    return [each.name for each in listed(lambda: paged(items, most=most, on_page=on_page))]


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 199, 200, 1000])
@pytest.mark.parametrize("most", [2, 3, 100])
def test_a_list_that_stays_is_reported_once_and_whole(count: int, most: int) -> None:
    assert names_of(named(count), most=most) == [each.name for each in named(count)]


@pytest.mark.parametrize("deleted", [1, 2, 60, 100])
def test_i1_what_stays_is_reported_although_others_are_deleted_between_pages(deleted: int) -> None:
    items = named(400)
    stays = [each.name for each in items[deleted:]]
    pages = iter([deleted])

    def delete(skip: int) -> None:
        del items[: next(pages, 0)]

    assert set(stays) <= set(names_of(items, delete))


def test_i1_with_deletions_and_creations_between_all_pages() -> None:
    items = [*named(150, "a"), *named(500)]
    stays = [each.name for each in items if each.name.startswith("q")]

    def change(skip: int) -> None:
        if skip % 3:
            items.insert(0, SimpleNamespace(name=f"0{skip}"))
        elif items[0].name.startswith("a"):
            del items[:7]

    assert set(stays) <= set(names_of(items, change))


def test_i1_where_all_that_was_read_is_deleted() -> None:
    items = named(101)

    def delete(skip: int) -> None:
        del items[:-1]

    assert names_of(items, delete)[-1] == "q0100"


def test_a_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_REQUESTS", 50)
    items = named(3)
    with pytest.raises(ServiceResponseError, match="does not end"):
        names_of(items, lambda skip: items.extend(named(100, f"s{skip}-")), most=2)
