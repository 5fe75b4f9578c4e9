"""Updates that succeed only if an entity is unchanged since it was read.

What it is: the ETag that one of our own namespaces reports for an entity, sent with the update that follows the read. The client sends
`If-Match: *`, which replaces any version. What it is not: a condition at Azure's namespaces. For them only `*` is documented; they
compare ETags of queues and topics, and fail on those of subscriptions.
Spec: RFC 9110, 13.1.1; Microsoft Learn, "Update entity"; docs/explanation/protocol.md, Administration.

Invariants:
    I1. The condition is the ETag of the last read, and only where that was of the same entity, at a namespace of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

__all__ = ["ReadCondition"]

_IF_MATCH = "If-Match"
_ANY = "*"
_OURS = "isthmus"


class ReadCondition:
    """The condition of updates of one thread."""

    def __init__(self) -> None:
        self._is_required = False
        # Of the last entity that was read: its path, and its ETag.
        self._read = ("", "")

    @contextmanager
    def required(self) -> Iterator[None]:
        """A context in which an update of the last entity read is refused with 412 where it was changed since."""
        self._is_required, self._read = True, ("", "")
        try:
            yield
        finally:
            self._is_required = False

    def put_into(self, request: Any) -> None:
        """Puts the condition into an update."""
        path, tag = self._read
        if tag and self._is_required and request.headers.get(_IF_MATCH) == _ANY and _path(request) == path:
            request.headers[_IF_MATCH] = tag

    def note(self, request: Any, response: Any) -> None:
        """Reads the ETag of an answer."""
        if self._is_required and request.method == "GET":
            tag = response.headers.get("ETag", "") if response.headers.get("Server", "") == _OURS else ""
            self._read = (_path(request), tag)


def _path(request: Any) -> str:
    return str(urlsplit(request.url).path).lower()
