"""The address of a relay, and the tokens for it.

What it is: an endpoint's connection string or credential, parsed for HTTP and WebSocket. What it is not: a connection.
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (connect protocol, listener control channel connection) and
"Azure Relay authentication and authorization".

Invariants:
    I1. Tokens from keys are made here, so that the application does not depend on a token service.
    I2. No repr and no error contains a key or a token.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from isthmus.client.endpoint import Endpoint, EndpointError, EndpointLike, EndpointUnavailableError
from isthmus.transport.credential import SharedKeyCredential, SignatureCredential, Token, TokenError, told_of_token

__all__ = ["RelayAddress", "ResolvedRelay"]

SCOPE = "https://relay.azure.net/.default"
_TLS_PORT, _PLAIN_PORT = 443, 5672
_ADDRESS_HINT = 'it begins with "Endpoint=sb://HOST/", or "Endpoint=sb://HOST:PORT/"'


@dataclass(frozen=True, slots=True)
class ResolvedRelay:
    """A resolved hybrid connection, and its credential.

    Attributes:
        host: host, and port if it is not the default.
        entity: the hybrid connection.
        is_plain: whether it has no TLS.
        is_local: whether it is on this machine, so that no proxy is used.
        tls: for `ssl` of aiohttp.
    """

    host: str
    entity: str
    is_plain: bool
    is_local: bool
    tls: ssl.SSLContext | bool
    _credential: Any = field(repr=False)

    def http(self, target: str) -> str:
        """The URL of a request; `target` is a path and a query below the hybrid connection."""
        return f"{'http' if self.is_plain else 'https'}://{self.host}/{self._path(target)}"

    def websocket(self, action: str, target: str = "") -> str:
        """The URL of a WebSocket."""
        path = self._path(target)
        mark = "&" if "?" in path else "?"
        return f"{'ws' if self.is_plain else 'wss'}://{self.host}/$hc/{path}{mark}sb-hc-action={action}"

    def _path(self, target: str) -> str:
        target = target if not target or target.startswith(("/", "?")) else f"/{target}"
        return quote(self.entity) + ("" if target == "/" else target)

    async def token(self) -> Token:
        """A token for the hybrid connection.

        Raises:
            TokenError: the token service refuses a token, or is unavailable.
        """
        credential = self._credential
        if isinstance(credential, SharedKeyCredential | SignatureCredential):
            return credential.token(f"http://{self.host}/{self.entity}", time.time())
        try:
            if inspect.iscoroutinefunction(credential.get_token):
                made = await credential.get_token(SCOPE)
            else:
                made = await asyncio.to_thread(credential.get_token, SCOPE)
        except Exception as error:  # each kind of credential has errors of its own
            raise TokenError(told_of_token(error)) from error
        return Token(f"Bearer {made.token}", "jwt", float(made.expires_on))


class RelayAddress:
    """The address of a hybrid connection, as an endpoint.

    Args:
        endpoint: as for the other classes of this library.
        entity: the hybrid connection; "" uses the `EntityPath` of the connection string.
        token_seconds: lifetime of a token that is made from a key.
        options: `connection_verify`, a file of trusted authorities, or `ssl_context`; a relay accepts no others.

    Raises:
        EndpointError: the endpoint is invalid, or names no hybrid connection.
    """

    def __init__(self, endpoint: EndpointLike, entity: str, token_seconds: float = 3600.0, **options: Any) -> None:
        self._endpoint = Endpoint.of(endpoint, **options)
        self._entity = entity.strip("/")
        self._token_seconds = token_seconds
        unknown = set(self._endpoint.options) - {"connection_verify", "ssl_context"}
        if unknown:
            raise EndpointError(
                self._endpoint.given, f"has options {sorted(unknown)}", "a relay takes connection_verify or ssl_context"
            )
        self._tls: ssl.SSLContext | bool | None = None

    @property
    def given(self) -> str:
        """The source of the endpoint, without secrets."""
        return self._endpoint.given

    def check(self) -> None:
        """Report configuration errors before connecting; a document that cannot be fetched now is no error.

        Raises:
            EndpointError: the endpoint cannot be resolved, or names no hybrid connection.
        """
        with suppress(EndpointUnavailableError):
            self.resolve()

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine; False while unknown."""
        try:
            return self.resolve().is_local
        except EndpointUnavailableError:
            return False

    def resolve(self) -> ResolvedRelay:
        """The hybrid connection, resolved now.

        Raises:
            EndpointError: the reference cannot be resolved, or names no hybrid connection.
            EndpointUnavailableError: a document with the endpoint cannot be fetched.
        """
        connection = self._endpoint.resolve()
        if isinstance(connection, tuple):
            host, credential = connection
            return self._resolved(host, _adapted(credential, self._token_seconds), self._entity, is_plain=False)
        parts = {
            name.strip().lower(): value
            for name, _, value in (part.partition("=") for part in connection.split(";") if part.strip())
        }
        made: SharedKeyCredential | SignatureCredential
        if parts.get("sharedaccesssignature"):
            made = SignatureCredential(parts["sharedaccesssignature"])
        elif parts.get("sharedaccesskeyname") and parts.get("sharedaccesskey"):
            made = SharedKeyCredential(parts["sharedaccesskeyname"], parts["sharedaccesskey"], self._token_seconds)
        else:
            raise EndpointError(
                self.given, "has no key", "it needs SharedAccessKeyName and SharedAccessKey, or SharedAccessSignature"
            )
        entity = self._entity or parts.get("entitypath", "").strip("/")
        is_plain = parts.get("usedevelopmentemulator", "").lower() == "true"
        return self._resolved(parts["endpoint"], made, entity, is_plain=is_plain)

    def _resolved(self, host: str, credential: Any, entity: str, *, is_plain: bool) -> ResolvedRelay:
        if not entity:
            raise EndpointError(self.given, "names no hybrid connection", "pass its name, or add EntityPath=…")
        try:
            found = urlsplit(host if "://" in host else f"sb://{host}")
            name = found.hostname or ""
            port = found.port or (_PLAIN_PORT if is_plain else _TLS_PORT)
        except ValueError as error:  # e.g. a port that is none
            raise EndpointError(self.given, f"has no address of a relay ({error})", _ADDRESS_HINT) from None
        if not name:
            raise EndpointError(self.given, "has no address of a relay", _ADDRESS_HINT)
        shown = f"[{name}]" if ":" in name else name
        authority = shown if port == _TLS_PORT and not is_plain else f"{shown}:{port}"
        return ResolvedRelay(authority, entity, is_plain, _is_local(name), self._context(), credential)

    def _context(self) -> ssl.SSLContext | bool:
        """Created once: reading the authorities takes some 20 ms."""
        if self._tls is None:
            given = self._endpoint.options.get("ssl_context")
            file = self._endpoint.options.get("connection_verify")
            try:
                self._tls = given or (ssl.create_default_context(cafile=file) if file else True)
            except OSError as error:  # also an error of ssl, if the file has no certificate
                reason = f"has connection_verify={file}, which cannot be read ({error.strerror or error})"
                raise EndpointError(self.given, reason, "pass a PEM file of authorities") from None
        return self._tls


def _adapted(credential: Any, token_seconds: float) -> Any:
    """A credential of azure-core, adapted for `ResolvedRelay.token`."""
    if hasattr(credential, "named_key"):
        named = credential.named_key
        return SharedKeyCredential(named.name, named.key, token_seconds)
    if hasattr(credential, "signature"):
        return SignatureCredential(credential.signature)
    return credential


def _is_local(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
