"""Atom entries, feeds and error bodies.

What it is: the envelopes around descriptions. What it is not: the descriptions (`description`, `rule`).
Spec: RFC 4287 as far as the service uses it; docs/explanation/protocol.md, Administration.

Invariants:
    I1. An entry's ``id`` is an absolute URL whose path is the entity's, capitals included: clients take names from it.
    I2. A feed has exactly two links when, and only when, more follows: the Python client's paging depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from isthmus.broker.admin.document import Node, element, text_element
from isthmus.errors import InvalidArgumentError

__all__ = ["ATOM", "SERVICE_BUS", "content_of", "empty_feed", "entry", "error_body", "feed", "format_time"]

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
NEVER = "0001-01-01T00:00:00"


def format_time(time_ms: int) -> str:
    """A wall time as the service writes it; 0 is never."""
    if not time_ms:
        return NEVER
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def entry(
    origin: str,
    path: str,
    title: str,
    content: str,
    *,
    published_ms: int,
    updated_ms: int,
    author: str = "",
) -> str:
    """An entry around a description's markup.

    Args:
        origin: scheme and authority that the client used.
        path: the entity's path, e.g. ``topic/Subscriptions/s``.
        title: the entity's name, which the Python client takes from here in lists.
        content: the description's markup.
        published_ms: when the entity was made.
        updated_ms: when its description last changed.
        author: the namespace's name; left out of subscriptions and rules.
    """
    url = f"{origin}/{quote(path, safe='/$')}"
    return element(
        "entry",
        text_element("id", url)
        + text_element("title", title, {"type": "text"})
        + text_element("published", format_time(published_ms))
        + text_element("updated", format_time(updated_ms))
        + (element("author", text_element("name", author)) if author else "")
        + element("link", "", {"rel": "self", "href": url})
        + element("content", content, {"type": "application/xml"}),
        {"xmlns": ATOM},
    )


def feed(title: str, url: str, entries: Sequence[str], *, updated_ms: int, next_url: str = "") -> str:
    """One page of a list; `next_url` only where more follows."""
    return element(
        "feed",
        text_element("title", title, {"type": "text"})
        + text_element("id", url)
        + text_element("updated", format_time(updated_ms))
        + element("link", "", {"rel": "self", "href": url})
        + (element("link", "", {"rel": "next", "href": next_url}) if next_url else "")
        + "".join(entries),
        {"xmlns": ATOM},
    )


def empty_feed(url: str, *, updated_ms: int) -> str:
    """The service's answer for an unknown entity: clients turn it into their not-found error."""
    return element(
        "feed",
        text_element("title", "Publicly Listed Services", {"type": "text"})
        + text_element(
            "subtitle", "This is the list of publicly-listed services currently available.", {"type": "text"}
        )
        + text_element("id", url)
        + text_element("updated", format_time(updated_ms)),
        {"xmlns": ATOM},
    )


def error_body(status: int, detail: str) -> str:
    """A refusal's body."""
    return element("Error", text_element("Code", str(status)) + text_element("Detail", detail))


def content_of(document: Node) -> Node:
    """The description inside an entry's content.

    Raises:
        InvalidArgumentError: the document is no entry, or there is no description in it.
    """
    if document.name != "entry" or document.namespace != ATOM:
        raise InvalidArgumentError("The body is not an Atom entry.")
    content = document.find("content")
    if content is None or not content.children:
        raise InvalidArgumentError("The entry has no content with a description.")
    description = content.children[0]
    if description.namespace != SERVICE_BUS:
        raise InvalidArgumentError(f"The description is not in the namespace {SERVICE_BUS}.")
    return description
