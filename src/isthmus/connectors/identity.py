"""Credentials of Microsoft Entra identities, one for each identity in a process.

What it is: from an identity's reference to a credential of azure-identity, which all namespaces, connections and vaults of a process
share, so that a token is asked for once. What it is not: the settings (`isthmus.topology.identity`), or the renewal of tokens, which
azure-identity and `isthmus.transport.credential` do.

Invariants:
    I1. A secret or certificate that changed is used after `REREAD_SECONDS` at most.
    I2. No error holds a secret.
    I3. Who issues tokens, and does not answer, is given up after `ANSWER_SECONDS`, and asked again by whoever needs the token; azure-identity
        waits 300 s by itself, and asks four times, longer than a connection may take: its time-out would be told, and not the cause.
    I4. The making of one identity's credential holds up no other one.
    I5. No password of `.netrc` is sent to who issues tokens.
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
# The service of a machine that has a managed identity is on the same machine; elsewhere nobody answers.
_MANAGED_CONNECT_SECONDS = 2


class TokenSource(Protocol):
    """What azure-identity's credentials have."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token for a scope, from a cache or newly issued; blocks."""
        ...


class _Made(NamedTuple):
    source: TokenSource
    proof: str
    """Digest of what the credential was made of: a secret, or the bytes of a certificate."""


class RotatingCredential:
    """A credential whose secret may be replaced: it is read again from time to time.

    Args:
        identity: which.
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
        """As azure-identity's."""
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read_at = self._clock()
                # Where the vault or file is away, what was read before is tried.
                with contextlib.suppress(IsthmusError, OSError):
                    self._made = _make(self._identity, self._made.proof, self._made.source)
            source = self._made.source
        return source.get_token(*scopes, **options)

    def close(self) -> None:
        """Nothing: other connections of the process use it."""


_shared: dict[str, RotatingCredential] = {}
_making: dict[str, threading.Lock] = {}
_shared_lock = threading.Lock()


def shared_credential(identity: IdentityReference | str) -> TokenSource:
    """The process's credential of an identity; it lives as long as the process.

    Args:
        identity: or its text.

    Raises:
        MissingExtraError: azure-identity is not installed.
        InvalidArgumentError: the text is no identity.
        SecretError: its secret leads nowhere.
        ConfigError: its certificate cannot be read, or the SDK takes its tenant or client for none.
    """
    found = IdentityReference.parse(identity) if isinstance(identity, str) else identity
    key = str(found)
    with _shared_lock:
        if key in _shared:
            return _shared[key]
        making = _making.setdefault(key, threading.Lock())
    with making:  # its secret may be in a vault, which another identity opens
        with _shared_lock:
            if key in _shared:
                return _shared[key]
        made = RotatingCredential(found)
        with _shared_lock:
            return _shared.setdefault(key, made)


def _make(identity: IdentityReference, known: str, source: TokenSource | None = None) -> _Made:
    """A credential; the one that is there where nothing has changed."""
    try:
        return _made_of(identity, known, source)
    except ValueError as error:  # of the SDK, e.g. of a tenant that can be none
        text = f"identity {identity.kind}: {str(error).partition(chr(10))[0]}"
        raise ConfigError([Fault(text, "look at tenant and client_id")]) from None


def _made_of(identity: IdentityReference, known: str, source: TokenSource | None) -> _Made:
    require("azure", f"identity: {identity.kind}")
    # An SDK is loaded only where it is used, here and in `_waits`.
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
            held = _certificate(identity.certificate_file)
            proof = hashlib.sha256(held).hexdigest()
            if source is not None and proof == known:
                return _Made(source, known)
            try:
                credential = CertificateCredential(identity.tenant, identity.client_id, certificate_data=held, **waits)
                return _Made(credential, proof)
            except (TypeError, ValueError):  # the first of a key with a password
                text = f"{identity.certificate_file} holds no certificate with an RSA private key, or the key has a password"
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
    """How a credential asks for tokens: once, and with an end (I3)."""
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
