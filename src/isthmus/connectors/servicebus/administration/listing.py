"""A complete list of a namespace's entities, also while entities are deleted.

What it is: all pages of one of the administration client's lists. What it is not: a snapshot: entities created or deleted while the
list is read may be missing or included.
Spec: Microsoft Learn, "Service Bus resource manager", Atom API: a page is requested by the number of entities to skip
(docs/explanation/protocol.md, Administration).

Invariants:
    I1. Entities that exist from the beginning to the end of the reading are in the list. A deletion shifts all later entities by one, across
        the end of the page that was read last. So each page begins with the last entity of the previous page; if it begins with an
        unknown one, an earlier page is requested. This works for any stable order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.core.exceptions import ResourceNotFoundError, ServiceResponseError

__all__ = ["listed", "listed_below"]

_PAGE = 100
"""The client's own page size."""
_STEP_BACK = 50
_REQUESTS = 10_000
"""A million entities; a namespace has far fewer. An endless list is given up."""


def listed(asked: Callable[..., Any], *names: str) -> list[Any]:
    """All entities of a list of the administration client.

    Args:
        asked: a method of the client whose name begins with `list_`.
        names: the parents of the list: a topic, or a topic and a subscription.

    Raises:
        AzureError: no answer, or a refusal.
    """
    found: dict[str, Any] = {}
    skip, step_back = 0, _STEP_BACK
    for _ in range(_REQUESTS):
        pages = asked(*names).by_page(f"?$skip={skip}&$top={_PAGE}" if skip else None)
        page = list(next(pages, ()))
        if skip and (not page or page[0].name not in found):
            skip, step_back = max(0, skip - step_back), 2 * step_back
            continue
        found.update((each.name, each) for each in page)
        if pages.continuation_token is None:
            return list(found.values())
        skip, step_back = skip + max(1, len(page) - 1), _STEP_BACK
    raise ServiceResponseError("the list of its entities does not end")


def listed_below(asked: Callable[..., Any], *names: str) -> list[Any]:
    """`listed` of the children of an entity from another list: empty where it was deleted meanwhile."""
    try:
        return listed(asked, *names)
    except ResourceNotFoundError:
        return []
