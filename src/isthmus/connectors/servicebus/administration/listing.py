"""A whole list of a namespace's entities, also while entities are deleted.

What it is: all pages of one of the administration client's lists. What it is not: a snapshot: what is created or deleted while the
list is read may be in it or not.
Spec: Microsoft Learn, "Service Bus resource manager", Atom API: a page is asked for by the number of entities to skip
(docs/explanation/protocol.md, Administration).

Invariants:
    I1. What exists from the beginning to the end of the reading is in the list. A deletion moves all that follows up by one, across the
        end of the page that was read last. So each page begins with the last entity of the page before; if it begins with one
        that is not known yet, an earlier page is asked for. That holds for any order that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.core.exceptions import ResourceNotFoundError, ServiceResponseError

__all__ = ["listed", "listed_below"]

_PAGE = 100
"""As many as the client asks for by itself."""
_STEP_BACK = 50
_REQUESTS = 10_000
"""A million entities; a namespace has far fewer. A list that never ends is given up."""


def listed(asked: Callable[..., Any], *names: str) -> list[Any]:
    """All that a list of the administration client tells.

    Args:
        asked: a method of the client whose name begins with `list_`.
        names: what the list is of: a topic, or a topic and a subscription.

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
    """`listed` of what an entity that another list told has: nothing where it was deleted meanwhile."""
    try:
        return listed(asked, *names)
    except ResourceNotFoundError:
        return []
