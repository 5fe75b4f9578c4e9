"""The parts of an HTTP request that the operations need, and their answers.

What it is: the two records, and the functions that every operation needs: pages of lists, ETags, the status of a change.
What it is not: HTTP (`app`), nor any operation.
Spec: docs/explanation/protocol.md, Administration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from isthmus.broker.admin import atom
from isthmus.broker.admin.address import Address
from isthmus.broker.admin.failure import PreconditionError

__all__ = ["PAGE_LIMIT", "Answer", "Request", "check_etag", "page", "status_of"]

# The service's largest page.
PAGE_LIMIT = 100
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of an HTTP request that the operations need.

    Attributes:
        address: the resource.
        origin: scheme and authority that the client used.
        api_version: of the query, e.g. ``2021-05``.
        body: the document of a PUT.
        if_match: the header's value; None creates, anything else updates.
        skip: how many entries of a list to skip.
        top: how many to return.
        filter: the text of `$filter`; "" for none.
        check_forward: called with each forwarding target before anything changes; raises if the caller may not use it.
    """

    address: Address
    origin: str
    api_version: str
    body: bytes = b""
    if_match: str | None = None
    skip: int = 0
    top: int = PAGE_LIMIT
    filter: str = ""
    check_forward: Callable[[str, str], None] = lambda path, setting: None

    @property
    def host(self) -> str:
        return self.origin.partition("://")[2]

    @property
    def url(self) -> str:
        return f"{self.origin}/{self.address.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        status: HTTP status.
        body: the document, "" for none.
        kind: ``entry`` or ``feed``.
        updated_at_ms: the entity's, for the ETag; 0 for none.
        catalog_version: of all descriptions, where it is sent.
        instance: identifies the namespace and its start, where it is sent.
    """

    status: int
    body: str = ""
    kind: str = "entry"
    updated_at_ms: int = 0
    catalog_version: str = ""
    instance: str = ""


def status_of(request: Request, changed: bool) -> int:
    """201 for a creation, else 200."""
    return 201 if changed and request.if_match is None else 200


def check_etag(if_match: str, updated_at_ms: int) -> None:
    """Refuses a change of an entity that has changed since the client read it.

    Raises:
        PreconditionError: it has changed since.
    """
    if if_match.strip().removeprefix("W/").strip('"') not in ("*", str(updated_at_ms)):
        raise PreconditionError(f"The entity has changed; its ETag is {updated_at_ms}.")


def page(request: Request, now_ms: int, title: str, items: Sequence[_T], write: Callable[[_T], Answer]) -> Answer:
    """The page of a list that a request asks for."""
    end = request.skip + request.top
    chosen = f"&$filter={quote(request.filter)}" if request.filter else ""
    following = f"?$skip={end}&$top={request.top}&api-version={request.api_version}{chosen}"
    body = atom.feed(
        title,
        request.url,
        [write(item).body for item in items[request.skip : end]],
        updated_ms=now_ms,
        next_url=request.url + following if end < len(items) else "",
    )
    return Answer(200, body, "feed")
