"""A client of azure-servicebus's administration, and the conversion of its errors.

What it is: the opening of a client with a namespace's connection string or identity, and the translation of its exceptions.
What it is not: its requests (`administration`, `pair`).

Invariants:
    I1. No error contains a key or a token.
    I2. A namespace whose connection string has `UseDevelopmentEmulator=true` is reached over HTTP on this machine, and elsewhere only
        where the operator has allowed it (`plain_host`). Where a CA file is named, it is always reached over HTTPS.
    I3. No request has an expired token.
    I4. A redirect is an error, and not followed with a token.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.connectors.administration import AdministrationError, EntityChangedError, NamespaceUnreachableError
from isthmus.connectors.identity import shared_credential
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.administration.answer import StrangeAnswerError
from isthmus.connectors.servicebus.administration.transport import AdministrationTransport
from isthmus.connectors.servicebus.connection_string import EMULATOR_HTTP_PORT, ConnectionString
from isthmus.connectors.servicebus.plain_host import is_loopback, may_be_plain
from isthmus.topology import NamespaceRef
from isthmus.transport.credential import told_of_token
from isthmus.transport.http_status import may_succeed_later

__all__ = [
    "CA_FILE_VARIABLE",
    "OpenClient",
    "administration_errors",
    "ca_file",
    "client_of_host",
    "client_of_string",
    "open_administration_client",
]

CA_FILE_VARIABLE = "ISTHMUS_CA_FILE"

# azure-identity logs every credential that it tried; an operator gets them in one error. An application's own handlers
# still receive the log lines.
logging.getLogger("azure").addHandler(logging.NullHandler())

_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 30
# The client's own ten retries would keep an operator waiting for minutes before it reports a wrong host name.
_RETRIES = 2
# The SDK's policy uses a token until a minute after its stated expiry, instead of a minute before.
_EARLY_SECONDS = 120
_PRECONDITION_FAILED = 412


class OpenClient(NamedTuple):
    """A client, the transport that it sends through, and `host[:port]` for errors and comparison."""

    client: ServiceBusAdministrationClient
    transport: AdministrationTransport
    endpoint: str

    def identity(self) -> str:
        """The namespace's identity, independent of the address used.

        Its name and creation time identify it in Azure, where names are unique. Two namespaces of one machine may
        have the same name and start in the same millisecond: each start of ours has a random id.
        """
        self.transport.namespace.instance = ""
        found = self.client.get_namespace_properties()
        return f"{found.name} {found.created_at_utc} {self.transport.namespace.instance}".rstrip()


def ca_file(namespace: NamespaceRef) -> str:
    """The file of the authority to trust: the namespace's, otherwise ISTHMUS_CA_FILE; empty for the system's own.

    Raises:
        AdministrationError: the file does not exist.
    """
    path = namespace.ca_file or os.environ.get(CA_FILE_VARIABLE, "")
    if path and not Path(path).is_file():
        origin = "ca_file" if namespace.ca_file else CA_FILE_VARIABLE
        raise AdministrationError(path, "there is no such file", f"write {origin}: the PEM file of the authority")
    return path


def open_administration_client(
    namespace: NamespaceRef, *, read_timeout_seconds: float = _READ_TIMEOUT_SECONDS, retries: int = _RETRIES
) -> OpenClient:
    """A client with the namespace's connection string or identity; it connects at the first call.

    Args:
        namespace: of kind servicebus.
        read_timeout_seconds: time-out of one answer.
        retries: how often a request without answer is repeated.

    Raises:
        SecretError, ConnectionStringError: the connection cannot be resolved.
        AdministrationError: the authority's file does not exist.
    """
    wait: dict[str, Any] = {"read_timeout_seconds": read_timeout_seconds, "retries": retries}
    authority = ca_file(namespace)
    if namespace.connection is None:
        return client_of_host(namespace.host, namespace.identity, authority, **wait)
    return client_of_string(ConnectionString.parse(resolve(namespace.connection)), authority, **wait)


def client_of_host(
    host: str,
    identity: str,
    authority: str = "",
    *,
    read_timeout_seconds: float = _READ_TIMEOUT_SECONDS,
    retries: int = _RETRIES,
) -> OpenClient:
    """A client with host name and Microsoft Entra identity.

    Args:
        host: of the namespace.
        identity: the identity, in the notation of `IdentityReference`.
        authority: PEM file of the authority to trust; empty for the system's own.
        read_timeout_seconds: time-out of one answer.
        retries: how often a request without answer is repeated.
    """
    transport = _transport(host.partition(":")[0], authority, read_timeout_seconds)
    options = _options(transport, retries)
    return OpenClient(
        ServiceBusAdministrationClient(host, shared_credential(identity), **options),
        transport,
        host,
    )


def client_of_string(
    parts: ConnectionString,
    authority: str = "",
    *,
    read_timeout_seconds: float = _READ_TIMEOUT_SECONDS,
    retries: int = _RETRIES,
) -> OpenClient:
    """A client with a connection string.

    Args:
        parts: the connection string.
        authority: PEM file of the authority to trust; empty for the system's own, and for HTTP where the string means no TLS.
        read_timeout_seconds: time-out of one answer.
        retries: how often a request without answer is repeated.
    """
    plain = parts.development_emulator and not authority and may_be_plain(parts.host)
    transport = _transport(parts.host, authority, read_timeout_seconds, plain=plain)
    options = _options(transport, retries)
    if plain and parts.port is None:
        parts = parts.with_port(EMULATOR_HTTP_PORT)  # the emulator's own string has no port
    client = ServiceBusAdministrationClient.from_connection_string(parts.text.reveal(), **options)
    if parts.key is not None:
        _end_early(client._credential)
    return OpenClient(client, transport, parts.authority)


def _end_early(credential: Any) -> None:
    """Makes the tokens of a shared key expire earlier for the client."""
    made = credential.get_token

    def token(*scopes: str, **options: Any) -> Any:
        found = made(*scopes, **options)
        return found._replace(expires_on=found.expires_on - _EARLY_SECONDS)

    credential.get_token = token


def _transport(
    host: str, authority: str, read_timeout_seconds: float, *, plain: bool = False
) -> AdministrationTransport:
    return AdministrationTransport(
        plain=plain,
        direct=is_loopback(host),
        connection_verify=authority or True,
        connection_timeout=_CONNECT_TIMEOUT_SECONDS,
        read_timeout=read_timeout_seconds,
    )


def _options(transport: AdministrationTransport, retries: int) -> dict[str, Any]:
    return {"transport": transport, "retry_total": retries, "retry_backoff_factor": 0.3, "permit_redirects": False}


@contextmanager
def administration_errors(endpoint: str) -> Iterator[None]:
    """A context in which the client's exceptions become an `AdministrationError` of this endpoint."""
    try:
        yield
    except ClientAuthenticationError as error:
        if error.status_code is None:  # no request reached the namespace
            raise NamespaceUnreachableError(
                endpoint, f"was not called: no token for the identity ({told_of_token(error)})", "run it again"
            ) from None
        raise AdministrationError(
            endpoint,
            f"refused the key or identity ({_first_line(error)})",
            "check the key's name, its value, and that it has the Manage right",
        ) from None
    except ServiceRequestError as error:
        text = _first_line(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            raise AdministrationError(
                endpoint,
                "its TLS certificate is signed by an authority that is not trusted here",
                f"write ca_file: in the namespace, or export {CA_FILE_VARIABLE}, with the authority's PEM file",
            ) from None
        raise NamespaceUnreachableError(
            endpoint, f"cannot be reached ({text})", "check host, port and network"
        ) from None
    except StrangeAnswerError as error:
        raise NamespaceUnreachableError(
            endpoint,
            f"answered with success and {_first_line(error)}, not as a Service Bus namespace does",
            "check host and port, and what is in between: a proxy, a sign-in page",
        ) from None
    except DecodeError as error:
        raise NamespaceUnreachableError(
            endpoint, f"gave an answer that cannot be read ({_first_line(error)})", "run it again"
        ) from None
    except ResourceExistsError:
        raise AdministrationError(endpoint, "another client created the entity meanwhile", "run it again") from None
    except HttpResponseError as error:
        if error.status_code == _PRECONDITION_FAILED:
            raise EntityChangedError(
                endpoint,
                "the entity was changed since it was read, by another client or by this request, whose answer was lost",
                "run it again",
            ) from None
        text = f"refused with {error.status_code} ({_first_line(error)})"
        if may_succeed_later(error.status_code or 0):
            raise NamespaceUnreachableError(endpoint, text, "run it again") from None
        raise AdministrationError(endpoint, text) from None
    except AzureError as error:
        raise NamespaceUnreachableError(endpoint, f"gave no answer ({_first_line(error)})", "run it again") from None
    except AttributeError as error:  # the client reads an empty body, or an entity that has another kind now
        raise NamespaceUnreachableError(
            endpoint, f"gave an answer without the requested entity ({_first_line(error)})", "run it again"
        ) from error
    except ValueError as error:  # e.g. of an invalid host name
        raise AdministrationError(
            endpoint, f"cannot be reached ({_first_line(error)})", "check host and port"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
