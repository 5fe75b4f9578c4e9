"""Credentials of Microsoft Entra identities, one for each identity in a process.

What it is: the creation of a credential of azure-identity from an identity's reference. All namespaces, connections and vaults of a process
share it, so that a token is requested once. What it is not: the settings (`isthmus.topology.identity`), or the renewal of tokens, which
azure-identity and `isthmus.transport.credential` do.

Invariants:
    I1. A secret or certificate that changed is used after `REREAD_SECONDS` at most.
    I2. No error contains a secret.
    I3. A token service that does not answer is given up after `ANSWER_SECONDS`, and requested again by the next caller that needs the token.
        azure-identity by default waits 300 s, and tries four times, longer than a connection may take: the caller would report its own time-out
        instead of the cause.
    I4. Creating one identity's credential does not delay another's.
    I5. No password of `.netrc` is sent to a token service.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from isthmus.connectors.secret import Secret, resolve
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.extra import require
from isthmus.topology.identity import IdentityReference

__all__ = ["ANSWER_SECONDS", "REREAD_SECONDS", "RotatingCredential", "TokenSource", "shared_credential"]

REREAD_SECONDS = 120.0
CONNECT_SECONDS = 10
ANSWER_SECONDS = 20
# The service of a managed identity runs on the machine itself; on other machines none answers.
_MANAGED_CONNECT_SECONDS = 2


class TokenSource(Protocol):
    """The common method of azure-identity's credentials."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token for a scope, from a cache or newly issued; blocks."""
        ...


class _Made(NamedTuple):
    source: TokenSource
    proof: str
    """Digest of the credential's input: a secret, or the bytes of a certificate."""


class RotatingCredential:
    """A credential whose secret may be replaced: the secret is read again periodically.

    Args:
        identity: the identity's reference.
        clock: monotonic seconds.

    Raises:
        As `shared_credential`.
    """

    def __init__(self, identity: IdentityReference, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._made = _make(identity, "")
        self._read_at = clock()

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """Returns a token, as azure-identity's credentials do."""
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read_at = self._clock()
                # If the vault or file is unreachable, the value read before is used.
                with contextlib.suppress(IsthmusError, OSError):
                    self._made = _make(self._identity, self._made.proof, self._made.source)
            source = self._made.source
        return source.get_token(*scopes, **options)

    def close(self) -> None:
        """Does nothing: other connections of the process use it."""


_shared: dict[str, RotatingCredential] = {}
_making: dict[str, threading.Lock] = {}
_shared_lock = threading.Lock()


def shared_credential(identity: IdentityReference | str) -> TokenSource:
    """The process's credential of an identity; it lives as long as the process.

    Args:
        identity: the reference, or its text.

    Raises:
        MissingExtraError: azure-identity is not installed.
        InvalidArgumentError: the text is not an identity.
        SecretError: its secret cannot be resolved.
        ConfigError: its certificate cannot be read, or the SDK rejects its tenant or client.
    """
    found = IdentityReference.parse(identity) if isinstance(identity, str) else identity
    key = str(found)
    with _shared_lock:
        if key in _shared:
            return _shared[key]
        making = _making.setdefault(key, threading.Lock())
    with making:  # its secret may be in a vault that needs another identity
        with _shared_lock:
            if key in _shared:
                return _shared[key]
        made = RotatingCredential(found)
        with _shared_lock:
            return _shared.setdefault(key, made)


def _make(identity: IdentityReference, known: str, source: TokenSource | None = None) -> _Made:
    """A credential; the existing one where its input has not changed."""
    try:
        return _made_of(identity, known, source)
    except ValueError as error:  # of the SDK, e.g. an invalid tenant
        text = f"identity {identity.kind}: {str(error).partition(chr(10))[0]}"
        raise ConfigError([Fault(text, "check tenant and client_id")]) from None


def _made_of(identity: IdentityReference, known: str, source: TokenSource | None) -> _Made:
    require("azure", f"identity: {identity.kind}")
    # SDKs are imported only where they are used, here and in `_waits`.
    from azure.identity import (
        AzureCliCredential,
        CertificateCredential,
        ClientSecretCredential,
        DefaultAzureCredential,
        ManagedIdentityCredential,
        WorkloadIdentityCredential,
    )

    waits = _waits(CONNECT_SECONDS)
    tenant: dict[str, Any] = {"tenant_id": identity.tenant} if identity.tenant else {}
    client: dict[str, Any] = {"client_id": identity.client_id} if identity.client_id else {}
    match identity.kind:
        case "client-secret":
            secret = resolve(identity.client_secret)
            proof = _proof(secret)
            if source is not None and proof == known:
                return _Made(source, known)
            made = ClientSecretCredential(identity.tenant, identity.client_id, secret.reveal(), **waits)
            return _Made(made, proof)
        case "client-certificate":
            pem = _certificate(identity.certificate_file)
            proof = hashlib.sha256(pem).hexdigest()
            if source is not None and proof == known:
                return _Made(source, known)
            try:
                credential = CertificateCredential(identity.tenant, identity.client_id, certificate_data=pem, **waits)
                return _Made(credential, proof)
            except (TypeError, ValueError):  # the TypeError of a key with a password
                text = f"{identity.certificate_file} contains no certificate with an RSA private key, or the key has a password"
                raise ConfigError([Fault(text, "write a PEM file with both, without a password")]) from None
    if source is not None:
        return _Made(source, known)
    match identity.kind:
        case "managed":
            return _Made(ManagedIdentityCredential(**client, **_waits(_MANAGED_CONNECT_SECONDS)), "")
        case "workload":
            try:
                return _Made(WorkloadIdentityCredential(**tenant, **client, **waits), "")
            except ValueError:
                text = "identity workload: this process has no workload identity"
                hint = (
                    "set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE, as the cluster's webhook does"
                )
                raise ConfigError([Fault(text, hint)]) from None
        case "cli":
            return _Made(AzureCliCredential(**tenant), "")
    return _Made(DefaultAzureCredential(**waits), "")


def _waits(connect_seconds: float) -> dict[str, Any]:
    """The options of a credential's token requests: one attempt, with a time-out (I3)."""
    from isthmus.connectors.sdk_transport import SdkTransport

    transport = SdkTransport(connection_timeout=connect_seconds, read_timeout=ANSWER_SECONDS)
    return {"transport": transport, "retry_total": 0}


def _proof(secret: Secret) -> str:
    return hashlib.sha256(secret.reveal().encode()).hexdigest()


def _certificate(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(
            [Fault(f"{file} cannot be read ({error.strerror})", "write certificate_file: a PEM file")]
        ) from None
