"""The addresses of the relay: of hybrid connections, and of the rendezvous of a listener and a requester.

What it is: pure parsing and building of paths and query strings. What it is not: HTTP.
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (listener protocol, accept handshake, connect protocol).

Invariants:
    I1. A requester's path and query reach the listener byte for byte, except parameters that begin with ``sb-hc-``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, quote, unquote

from isthmus.broker.security.sas import canonical_path, parents

__all__ = [
    "PREFIX",
    "find_name",
    "is_below",
    "leads_up",
    "query_parameter",
    "rendezvous_address",
    "split_target",
    "without_own",
    "written_behind",
]

PREFIX = "/$hc/"
_OWN = re.compile(r"sb-hc-", re.IGNORECASE)
# The last parameter of an address; text after its value was added by the listener.
_END_OF_ADDRESS = re.compile(r"(?:^|&)sb-hc-rendezvous=[^&]*", re.IGNORECASE)
# Segments that a service behind a listener may read as "..", some with a parameter after a semicolon.
_UP = re.compile(r"(?:^|/)\.\.?(?:;[^/]*)?(?:/|$)|\\")


def is_below(raw_path: str) -> bool:
    """Whether a path is one of WebSockets of the relay."""
    return raw_path.lower().startswith((PREFIX, "/%24hc/"))


def find_name(raw_path: str, exists: Callable[[str], bool]) -> str:
    """The canonical name of the hybrid connection that a path begins with; "" where there is none.

    Args:
        raw_path: percent-encoded, with or without ``/$hc``.
        exists: whether there is a hybrid connection of a name.
    """
    path = raw_path[raw_path.index("/", 1) :] if is_below(raw_path) else raw_path
    found = ""
    for name in parents(canonical_path(path)):
        if name and exists(name):
            found = name  # the longest match is used
    return found


def leads_up(path: str) -> bool:
    """Whether a service may resolve a canonical path to one outside its prefix (path traversal)."""
    return _UP.search(path) is not None


def split_target(target: str) -> tuple[str, str]:
    """The path and the query of a request's target, as they were written."""
    path, _, query = target.partition("?")
    return path, query


def without_own(query: str) -> str:
    """A query without the relay's own parameters, otherwise unchanged."""
    return "&".join(part for part in query.split("&") if part and not _OWN.match(unquote(part)))


def query_parameter(query: str, name: str) -> str:
    """A parameter in a query, in any case of its name; "" where there is none."""
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key.lower() == name.lower():
            return value
    return ""


def written_behind(query: str) -> str:
    """The text that a listener appended to the address that it was sent."""
    found = _END_OF_ADDRESS.search(query)
    return query[found.end() :] if found is not None else ""


def rendezvous_address(origin: str, path: str, query: str, own: Mapping[str, str]) -> str:
    """The address to which a listener connects for one requester.

    Args:
        origin: scheme and host by which the listener reaches the relay, e.g. ``wss://host:5671``.
        path: of the requester, percent-encoded, with or without ``/$hc``.
        query: of the requester, without the relay's own parameters.
        own: the relay's own parameters.
    """
    path = path if is_below(path) else PREFIX + path.lstrip("/")
    parts = ([query] if query else []) + [f"{name}={quote(value, safe='')}" for name, value in own.items()]
    return f"{origin}{path}?{'&'.join(parts)}"
