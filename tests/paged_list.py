"""A list of the administration client in memory, as the client gives it: page by page, by the number of entities to skip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qs

from azure.core.paging import ItemPaged

__all__ = ["paged"]


def paged(
    items: Sequence[Any], *, most: int = 100, on_page: Callable[[int], None] = lambda skip: None
) -> ItemPaged[Any]:
    """A list of items, which are looked at again for each page.

    Args:
        items: what the list returns; it may change between pages.
        most: entities of one page at most.
        on_page: is called with how many entities each page has skipped, once the page is read.
    """

    def get_next(token: str | None) -> tuple[str | None, Iterable[Any]]:
        query = parse_qs((token or "").lstrip("?"))
        skip, top = int(query.get("$skip", ["0"])[0]), min(most, int(query.get("$top", ["100"])[0]))
        page, is_more = items[skip : skip + top], skip + top < len(items)
        on_page(skip)
        return f"?$skip={skip + top}&$top={top}" if is_more else None, page

    return ItemPaged(get_next, lambda answer: (answer[0], iter(answer[1])))
