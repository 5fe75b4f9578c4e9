"""Whether an answer with status 200 is from a namespace's administration.

What it is: a check of the first element of a body. What it is not: its parsing, which is the client's.
Spec: RFC 4287 (Atom), sections 4.1.1 and 4.1.2; docs/explanation/protocol.md, Administration.

Invariants:
    I1. Nothing but a feed is taken for a list. The client returns an empty list for any other XML, and no entity for any other
        answer; entities that seem to be missing would be deleted at another namespace, or created again.
"""

from __future__ import annotations

import re

from azure.core.exceptions import AzureError

__all__ = ["StrangeAnswerError", "check_answer"]

_ATOM = b"http://www.w3.org/2005/Atom"
_LOOKED_AT_BYTES = 4096
# A byte order mark, the XML declaration, comments and white space may precede it.
_ROOT = re.compile(rb"^(?:\xef\xbb\xbf)?\s*(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<(?:[\w.-]+:)?([\w-]+)([^>]*)", re.DOTALL)
_HTML = re.compile(rb"^(?:\xef\xbb\xbf)?\s*(?:<!doctype html|<html|.*?<html[\s>])", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)
_TITLE_LENGTH = 60
_WITH_BODY = frozenset({"GET", "PUT"})
_DONE = frozenset({200, 201})


class StrangeAnswerError(AzureError):
    """A server other than a namespace's administration answered with success."""


def check_answer(method: str, url: str, status: int, kind: str, body: bytes) -> None:
    """Checks that a successful answer has an Atom feed or entry.

    Args:
        method: of the request.
        url: of the request.
        status: of the answer.
        kind: media type in the answer.
        body: of the answer.

    Raises:
        StrangeAnswerError: it has not.
    """
    if status not in _DONE or method not in _WITH_BODY:
        return
    head = body[:_LOOKED_AT_BYTES]
    found = _ROOT.match(head)
    roots = (b"feed",) if re.search(r"[?&](\$|%24)skip=", url) else (b"feed", b"entry")
    if found is not None and found[1] in roots and _ATOM in found[2]:
        return
    raise StrangeAnswerError(_described(kind, head))


def _described(kind: str, head: bytes) -> str:
    if not head.strip():
        return "an empty answer"
    if not _HTML.match(head):
        return f"an answer of type '{kind}'" if kind else "an answer of unknown type"
    title = _TITLE.search(head)
    if title is None:
        return "a page of HTML"
    text = "".join(each for each in title[1].decode(errors="replace") if each.isprintable() or each == " ")
    return f"a page of HTML with the title '{' '.join(text.split())[:_TITLE_LENGTH]}'"
