"""The namespace that an operator names, and requests to it.

What it is: a reference to a connection string resolved to an endpoint, an open client, and HTTP requests with a token.
What it is not: a store of secrets.

Invariants:
    I1. Neither an error nor an answer contains a key or a token, and a token goes to the namespace only.
"""

from __future__ import annotations

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import ConnectionLostError, EntityNotFoundError, IsthmusError, UnauthorizedError
from isthmus.transport import Client, Endpoint

__all__ = ["CA_FILE_VARIABLE", "HTTPS_PORT", "NamespaceAnswerError", "Target", "find_target", "http_root"]

CA_FILE_VARIABLE = "ISTHMUS_CA_FILE"
HTTPS_PORT = 443


class NamespaceAnswerError(IsthmusError):
    """The namespace answered an HTTP request with an error that has no class of its own here."""

    code = "namespace-answer"


class Target(NamedTuple):
    """One namespace."""

    endpoint: Endpoint
    http_root: str

    @property
    def name(self) -> str:
        """Host, and port where the connection string has one."""
        return self.endpoint.authority or self.endpoint.host

    def open(self, path: str) -> Client:
        """A connection that may use the entity at `path`.

        Raises:
            IsthmusError: no connection, no such entity, or no right.
        """
        return open_client(self.endpoint, path, f"isthmus-operator-{os.getpid()}")

    def ask(self, method: str, path: str, timeout_seconds: float = 30.0, *, resource: str = "") -> bytes:
        """The body of an HTTP answer.

        Args:
            method: GET or POST.
            path: with its query, beginning with a slash.
            timeout_seconds: for the whole answer.
            resource: path of the entity that the token names; empty: the namespace.

        Raises:
            UnauthorizedError: the key has no right to it.
            EntityNotFoundError: it does not exist.
            ConnectionLostError: no answer.
            NamespaceAnswerError: any other error, with the namespace's text.
        """
        token = self.endpoint.credential.token(self.endpoint.audience(resource), time.time())
        request = urllib.request.Request(self.http_root + path, method=method)  # noqa: S310 - http_root has a known scheme
        if token is not None:
            request.add_header("Authorization", token.text)
        context = self.endpoint.ssl_context() if self.http_root.startswith("https:") else None
        try:
            return self._send(request, context, timeout_seconds)
        except urllib.error.HTTPError as error:
            text = _text_of(error)
            if error.code in (401, 403):
                raise UnauthorizedError(f"{self.name}: {text}") from None
            if error.code == 404:
                raise EntityNotFoundError(path.partition("?")[0].strip("/")) from None
            raise NamespaceAnswerError(f"{self.name} answered {error.code}: {text}") from None
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionLostError(f"{self.http_root}: {getattr(reason, 'strerror', None) or reason}") from None

    @staticmethod
    def _send(request: urllib.request.Request, context: ssl.SSLContext | None, timeout_seconds: float) -> bytes:
        # No proxy of the environment is used between an operator and the namespace.
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _Unredirected()]
        if context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_seconds) as answer:
            body: bytes = answer.read()
        return body

    def read_entity(self, path: str, entity: str) -> bytes:
        """The body of a GET about one entity; a rule of the entity itself may grant the right.

        Raises:
            IsthmusError: as for `ask`.
        """
        return self.ask("GET", path, resource=entity)


class _Unredirected(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would send the token to another host, and no namespace redirects."""

    def redirect_request(self, *_: object) -> None:
        return None


def find_target(reference: str, ca_file: str = "") -> Target:
    """The namespace behind a reference (`env:NAME`, `file:/path#key`, `keyvault:vault/name`).

    Raises:
        SecretError: the reference cannot be resolved.
        ConnectionStringError: the secret is not a connection string.
    """
    parsed = ConnectionString.parse(resolve(reference))
    endpoint = endpoint_of_string(parsed, ca_file or os.environ.get(CA_FILE_VARIABLE, ""))
    return Target(endpoint, http_root(parsed, endpoint))


def http_root(parsed: ConnectionString, endpoint: Endpoint) -> str:
    """Scheme, host and port of the namespace's HTTP interface."""
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    # Every port of a namespace of isthmus also speaks HTTP; Azure has a port of its own for it.
    if parsed.tls:
        return f"https://{host}:{parsed.port or HTTPS_PORT}"
    return f"http://{host}:{endpoint.port}"


def _text_of(error: urllib.error.HTTPError) -> str:
    body = error.read(4096)
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return error.reason
