"""The address of a namespace, as an application passes it, and the SDK's clients for it.

What it is: one form for every value that an application may pass for a namespace, and the azure-servicebus clients made from it.
What it is not: a connection; the senders and receivers of this package make clients when they need them and discard them on failure.

An endpoint is given as one of:
    a connection string            as the portal or `isthmus namespace` shows it; the vendor's emulator included
    (host, credential)             a credential that `ServiceBusClient` accepts, e.g. of azure-identity
    "env:NAME"                     an environment variable with a connection string
    "file:/path" or "file:/path#key"
                                   a file with a connection string, or a JSON object or KEY=value lines that have it at key
    "https://host/path#key"        the same in a document that is fetched; if a fetch fails, the previous document is used
    "srv:NAME#REFERENCE"           host and port by the SRV records of a DNS name, everything else from one of the references above
    ("srv:NAME", credential)       the same with a credential
    an `Endpoint`

Invariants:
    I1. References (`env:`, `file:`, `https:`, `srv:`) are resolved for each new client, so that a changed key or a moved namespace takes effect from
        the next connection on.
    I2. A document that cannot be fetched means that a region may be unavailable; it is not an error of the program.
    I3. No repr, error or statistic contains a key or a token.
"""

from __future__ import annotations

import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.client.srv import NoRecordsError, Record, Service, address, with_host
from isthmus.errors import InvalidArgumentError, IsthmusError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

__all__ = ["Endpoint", "EndpointError", "EndpointLike", "EndpointUnavailableError"]

_log = logging.getLogger(__name__)

_FETCH_SECONDS = 5.0
_LARGEST_DOCUMENT_BYTES = 1 << 20
_SRV = "srv:"

Connection = str | tuple[str, Any]
"""A connection string, or a host and a credential."""


class EndpointError(InvalidArgumentError):
    """The value given for a namespace is no usable endpoint; the text never repeats a connection string."""

    code = "bad-endpoint"

    def __init__(self, given: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__("", given=given, reason=reason, hint=hint)

    def text(self) -> str:
        a = self.attributes
        return f"endpoint {a.get('given')}: {a.get('reason')}; {a.get('hint')}"


class EndpointUnavailableError(IsthmusError):
    """A document that contains the endpoint of a namespace cannot be fetched now.

    Attributes:
        url: of the document.
        reason: why.
    """

    code = "endpoint-unavailable"
    retryable = True

    def __init__(self, url: str = "", reason: str = "") -> None:
        super().__init__("", url=url, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return f"{a.get('url')} cannot be fetched: {a.get('reason')}; it is tried again at the next connection"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One namespace, as an application addresses it.

    Attributes:
        given: what it was made from, without secrets: a host, or the reference.
        options: further arguments of `ServiceBusClient`, e.g. `transport_type`, `http_proxy`, `ssl_context`.
    """

    given: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _resolve: Callable[[], Connection] = field(default=lambda: "", repr=False, compare=False)

    @classmethod
    def of(cls, value: EndpointLike, **options: Any) -> Endpoint:
        """Make an endpoint from the value that an application passed for a namespace.

        Args:
            value: in one of the forms that this module lists.
            options: further arguments of `ServiceBusClient`.

        Raises:
            EndpointError: it is none of these forms.
        """
        if isinstance(value, Endpoint):
            return cls(value.given, {**value.options, **options}, value._resolve)
        if isinstance(value, tuple):
            host, credential = _host_and_credential(value)
            if host.startswith(_SRV):
                service = Service(host.removeprefix(_SRV))
                return cls(host, options, lambda: (address(_found(host, service)), credential))
            return cls(host, options, lambda: (host, credential))
        if not isinstance(value, str):
            raise EndpointError(
                type(value).__name__, "is no endpoint", "pass a connection string or (host, credential)"
            )
        if value.startswith("https://"):
            document = _Document(value)
            return cls(document.shown, options, document.read)
        if value.startswith(_SRV):
            return cls(value, options, cls._by_srv(value))
        for scheme, read in (("env:", _from_environment), ("file:", _from_file)):
            if value.startswith(scheme):
                return cls(value, options, partial(_resolved, value, read))
        connection = _checked("given", value)
        return cls(_host(connection), options, lambda: connection)

    @classmethod
    def _by_srv(cls, value: str) -> Callable[[], Connection]:
        name, _, reference = value.removeprefix(_SRV).partition("#")
        if not name or not reference.startswith(("env:", "file:", "https://")):
            raise EndpointError(
                f"{_SRV}{name}",
                "names no connection string",
                'write "srv:_servicebus._tcp.example.org#env:NAME", or a (host, credential)',
            )
        service, inner = Service(name), cls.of(reference)

        def resolve() -> Connection:
            connection = inner.resolve()
            assert isinstance(connection, str)
            return with_host(connection, _found(value, service))

        return resolve

    def resolve(self) -> Connection:
        """The connection string, or host and credential, resolved now.

        Raises:
            EndpointError: the reference cannot be resolved, or has no connection string.
        """
        return self._resolve()

    @property
    def host(self) -> str:
        """Host, and port where the connection string has one, resolved now."""
        connection = self.resolve()
        return connection[0] if isinstance(connection, tuple) else _host(connection)

    def client(self, **options: Any) -> ServiceBusClient:
        """A new client of azure-servicebus.

        Args:
            options: arguments of `ServiceBusClient` that override those of this endpoint.
        """
        from azure.servicebus import ServiceBusClient

        return self._make(ServiceBusClient, options)  # type: ignore[no-any-return]

    def async_client(self, **options: Any) -> AsyncServiceBusClient:
        """A new client of azure-servicebus for asyncio; arguments as for `client`."""
        from azure.servicebus.aio import ServiceBusClient

        return self._make(ServiceBusClient, options)  # type: ignore[no-any-return]

    def _make(self, kind: Any, options: dict[str, Any]) -> Any:
        connection = self.resolve()
        chosen = {**self.options, **options}
        if isinstance(connection, tuple):
            return kind(connection[0], connection[1], **chosen)
        return kind.from_connection_string(connection, **chosen)


EndpointLike = str | tuple[str, Any] | Endpoint
"""The values that the classes of this package accept for a namespace."""


def _found(given: str, service: Service) -> Record:
    try:
        return service.find()
    except OSError as error:
        raise EndpointUnavailableError(given, str(error)) from error
    except NoRecordsError as error:
        raise EndpointError(given, str(error), "check the name and its records") from None


def _host_and_credential(value: tuple[Any, ...]) -> tuple[str, Any]:
    if len(value) != 2 or not isinstance(value[0], str) or not value[0] or isinstance(value[1], str):
        raise EndpointError(
            "tuple",
            "is not (host, credential)",
            'pass e.g. ("orders.servicebus.windows.net", DefaultAzureCredential())',
        )
    return value[0], value[1]


def _checked(given: str, text: str) -> str:
    parts = dict(part.strip().split("=", 1) for part in text.strip().rstrip(";").split(";") if "=" in part)
    names = {name.lower() for name in parts}
    if "endpoint" not in names:
        raise EndpointError(
            given, "is no connection string", 'it begins with "Endpoint=sb://…"; a bare host needs (host, credential)'
        )
    return text.strip()


class _Document:
    """A document that is fetched for each new connection.

    Attributes:
        shown: its address without parts that may be secret.
    """

    def __init__(self, url: str) -> None:
        self._url, _, self._key = url.partition("#")
        self.shown = _shown(self._url) + (f"#{self._key}" if self._key else "")
        self._last = ""

    def read(self) -> str:
        try:
            with urllib.request.build_opener(_OnlyTls).open(self._url, timeout=_FETCH_SECONDS) as answer:
                text = answer.read(_LARGEST_DOCUMENT_BYTES).decode("utf-8-sig").strip()
                if getattr(answer, "length", 0):  # `read` regards the end of the connection as the end of the document
                    raise OSError(f"the document is cut, or has more than {_LARGEST_DOCUMENT_BYTES} bytes")
        except (OSError, ValueError, HTTPException) as error:
            if not self._last:
                raise EndpointUnavailableError(self.shown, str(error)) from error
            _log.warning("the document cannot be fetched, the previous one is used: url=%s error=%s", self.shown, error)
            return self._last
        self._last = _checked(self.shown, value_at(self.shown, text, self._key) if self._key else text)
        return self._last


class _OnlyTls(urllib.request.HTTPRedirectHandler):
    """A document that contains keys is fetched over TLS, also after a redirect."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.lower().startswith("https:"):
            raise urllib.error.URLError(f"the document has moved to {_shown(newurl)}, which has no TLS")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _shown(url: str) -> str:
    """An address without user and query: both may contain a secret, e.g. the signature of a blob."""
    scheme, _, rest = url.partition("://")
    location, query, _ = rest.partition("?")
    authority, slash, path = location.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}" + ("?…" if query else "")


def _resolved(reference: str, read: Callable[[str], str]) -> str:
    return _checked(reference, read(reference))


def _host(connection: str) -> str:
    for part in connection.split(";"):
        name, _, value = part.strip().partition("=")
        if name.lower() == "endpoint":
            return value.partition("://")[2].strip("/") or value.strip("/")
    return ""


def _from_environment(reference: str) -> str:
    name = reference.removeprefix("env:")
    value = os.environ.get(name, "").removeprefix("\ufeff")
    if not value:
        raise EndpointError(reference, "the environment variable is not set", f"export {name}=…")
    return value


def _from_file(reference: str) -> str:
    path, _, key = reference.removeprefix("file:").partition("#")
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise EndpointError(reference, f"the file cannot be read ({reason})", "check the path and its rights") from None
    if not key:
        return text
    return value_at(reference, text, key)


def value_at(reference: str, text: str, key: str) -> str:
    """The text at a key of a JSON object or of KEY=value lines.

    Raises:
        EndpointError: there is no text at this key.
    """
    found: object = ""
    if text.startswith("{"):
        try:
            found = json.loads(text).get(key, "")
        except ValueError:
            raise EndpointError(reference, "starts as JSON but is malformed", "correct the document") from None
    else:
        for line in text.splitlines():
            name, _, value = line.strip().removeprefix("export ").partition("=")
            if name.strip() == key:
                found = value.strip().strip("\"'")
                break
    if not isinstance(found, str) or not found:
        raise EndpointError(reference, f"has no text at {key!r}", "write a JSON object or KEY=value lines")
    return found
