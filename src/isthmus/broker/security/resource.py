"""The resource of a shared access signature.

What it is: parsing the ``sr`` text as the path of an entity or as the whole namespace. What it is not: the check
of a signature (`sas`) or of a right (`keyring`).
Spec: Microsoft Learn, "Service Bus access control with Shared Access Signatures": the resource is a URI such as
``sb://<host>/<entity>``, percent-encoded as a whole. Tokens that are made by hand leave the scheme out.

Invariants:
    I1. The scope of a resource does not depend on the host that the client names.
    I2. Without a scheme a text is a path, unless its first segment is one of the server's own hosts and no entity has that
        path; with a leading slash it is always a path.
    I3. With a scheme the authority is a host. One that is not the server's own and is an entity's name grants nothing:
        its issuer omitted the host.
    I4. A text that names neither a host nor a path grants nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from urllib.parse import unquote

from isthmus.broker.security.sas import MalformedTokenError, MisplacedHostError, canonical_path, parents

__all__ = ["check_host", "scope_of"]

_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)(.*)", re.DOTALL)
_SCHEMES = frozenset({"sb", "amqp", "amqps", "http", "https", "ws", "wss"})
_NO_HOST = re.compile(r"[@\\%\s\x00-\x1f\x7f]")
_PORT = re.compile(r":\d*$")


def scope_of(resource: str, hosts: Container[str], exists: Callable[[str], bool]) -> str:
    """The canonical path that a token is for; ``""`` is the whole namespace.

    Args:
        resource: the ``sr`` text as received, still percent-encoded.
        hosts: the server's own.
        exists: whether an entity has a canonical path.

    Raises:
        MalformedTokenError: the text is not a resource.
    """
    text = unquote(resource).strip()
    absolute = _ABSOLUTE.match(text)
    if absolute is not None:
        scheme, authority, rest = absolute.groups()
        return _of_uri(scheme, authority, canonical_path("/" + rest.lstrip("/")))
    path = canonical_path(text)
    if not path:
        raise MalformedTokenError("The field 'sr' names neither a host nor an entity.")
    first = re.split(r"[/?#]", text, maxsplit=1)[0]
    if first not in hosts or any(exists(each) for each in parents(path) if each):
        return path
    return path.partition("/")[2]


def check_host(resource: str, hosts: Container[str], exists: Callable[[str], bool]) -> None:
    """Refuses a resource that names an entity instead of the host.

    Call it only after the signature was verified: the refusal reveals that there is such an entity. Arguments as for
    `scope_of`, which has parsed the resource.

    Raises:
        MisplacedHostError: it does.
    """
    absolute = _ABSOLUTE.match(unquote(resource).strip())
    if absolute is None:
        return
    authority = absolute.group(2)
    name = canonical_path(_PORT.sub("", authority))
    if authority not in hosts and exists(name):
        raise MisplacedHostError(name)


def _of_uri(scheme: str, authority: str, path: str) -> str:
    if scheme.lower() not in _SCHEMES:
        raise MalformedTokenError("The field 'sr' has a scheme that is not sb, amqp, amqps, http or https.")
    if _NO_HOST.search(authority):
        raise MalformedTokenError("The field 'sr' has no host between its scheme and its path.")
    if not authority and not path:
        raise MalformedTokenError("The field 'sr' names neither a host nor an entity.")
    return path
