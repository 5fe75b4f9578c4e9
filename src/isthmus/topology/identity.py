"""Microsoft Entra identities, with which a namespace is opened.

What it is: the settings of an identity, the faults of their combination, and the text in which options pass it from the driver to the
workers: `KIND;name=value;…`. What it is not: a credential (`isthmus.connectors.identity`).
Specification: Microsoft Learn, "Azure Identity client library for Python".

Invariants:
    I1. The text contains references to secrets, never secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidArgumentError
from isthmus.topology.file.reference import SecretError, SecretReference
from isthmus.topology.file.setting import Kind, Setting

__all__ = ["IDENTITIES", "IDENTITY", "IDENTITY_SETTINGS", "IdentityReference", "identity_faults"]

IDENTITIES = ("default", "managed", "workload", "client-secret", "client-certificate", "cli")

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "client-secret": ("tenant", "client_id", "client_secret"),
    "client-certificate": ("tenant", "client_id", "certificate_file"),
}
_TAKES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "managed": ("client_id",),
    "workload": ("tenant", "client_id"),
    "cli": ("tenant",),
    **_NEEDS,
}
_EXAMPLES = {"client_secret": "env:NAME", "certificate_file": "isthmus.pem"}

IDENTITY = Setting(
    name="identity",
    kind=Kind.CHOICE,
    choices=IDENTITIES,
    default="default",
    description="Microsoft Entra identity that opens the host. `default`: the credential that azure-identity's DefaultAzureCredential finds "
    "(environment, workload, managed identity, az login). `managed`: the managed identity of this machine. `workload`: that of this pod "
    "(Kubernetes). `client-secret` and `client-certificate`: that of an application. `cli`: the user who is logged in with az.",
    example="default",
)

IDENTITY_SETTINGS = (
    Setting(
        name="tenant",
        kind=Kind.TEXT,
        default="",
        example="contoso.onmicrosoft.com",
        description="With `identity`: the tenant that issues tokens. Each namespace may have its own.",
    ),
    Setting(
        name="client_id",
        kind=Kind.TEXT,
        default="",
        example="9f5f1c2e-3d0a-4f5e-8a55-0d3b6f1a2c3d",
        description="With `identity`: id of the application, or of a user-assigned managed identity.",
    ),
    Setting(
        name="client_secret",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:NAME",
        description="With `identity: client-secret`: the application's secret. Reference: `env:NAME`, `file:/path#key` or "
        "`keyvault:vault/name`.",
    ),
    Setting(
        name="certificate_file",
        kind=Kind.PATH,
        default="",
        example="isthmus.pem",
        description="With `identity: client-certificate`: PEM file with the application's certificate and its private key.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityReference:
    """A reference to an identity.

    Attributes:
        kind: one of `IDENTITIES`.
        tenant: the tenant that issues tokens; empty: the identity's own.
        client_id: id of an application or a managed identity; empty: the system's.
        client_secret: reference to the application's secret; empty for none.
        certificate_file: PEM file of the application's certificate and key; empty for none.
    """

    kind: str = "default"
    tenant: str = ""
    client_id: str = ""
    client_secret: str = ""
    certificate_file: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> IdentityReference:
        """An identity from the values of `IDENTITY` and `IDENTITY_SETTINGS`."""
        found = {each.name: str(values.get(each.name) or "") for each in IDENTITY_SETTINGS}
        return cls(kind=str(values.get("identity") or "default"), **found)

    @classmethod
    def parse(cls, text: str) -> IdentityReference:
        """An identity from the text that `str` returns.

        Raises:
            InvalidArgumentError: the text is no identity.
        """
        kind, *rest = text.split(";")
        pairs = [each.partition("=") for each in rest]
        known = {each.name for each in fields(cls)} - {"kind"}
        if kind not in IDENTITIES or not all(name in known and value for name, _, value in pairs):
            raise InvalidArgumentError(
                f"option 'identity': write {', '.join(IDENTITIES)}, with ';tenant=…;client_id=…' as needed"
            )
        found = cls(kind=kind, **{name: value for name, _, value in pairs})
        for _, message, hint in identity_faults(found):
            raise InvalidArgumentError(f"option 'identity': {message}; {hint}")
        return found

    def anchored(self, directory: Path) -> IdentityReference:
        """The same with relative file paths resolved against `directory`."""
        secret = str(SecretReference.parse(self.client_secret).anchored(directory)) if self.client_secret else ""
        file = str(directory / self.certificate_file) if self.certificate_file else ""
        return replace(self, client_secret=secret, certificate_file=file)

    def __str__(self) -> str:
        pairs = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "kind"]
        return ";".join((self.kind, *(f"{name}={value}" for name, value in pairs if value)))


def identity_faults(
    identity: IdentityReference, write: Callable[[str, str], str] = lambda name, value: f"{name}={value}"
) -> Iterator[tuple[str, str, str]]:
    """The faults of an identity's combined settings.

    Args:
        identity: the settings.
        write: formats a setting and its value for a hint.

    Yields:
        The faulty setting, the fault, and a hint.
    """
    for name in _NEEDS.get(identity.kind, ()):
        if not getattr(identity, name):
            yield "identity", f"identity {identity.kind} needs {name}", f"write {write(name, _EXAMPLES.get(name, '…'))}"
    if identity.client_secret:
        try:
            SecretReference.parse(identity.client_secret)
        except SecretError as error:
            example = _EXAMPLES["client_secret"]
            yield "client_secret", f"client_secret: {error.reason}", f"write {write('client_secret', example)}"
    for each in IDENTITY_SETTINGS:
        if getattr(identity, each.name) and each.name not in _TAKES[identity.kind]:
            kinds = " or ".join(kind for kind, names in _TAKES.items() if each.name in names)
            hint = f"remove it, or write {write('identity', kinds)}"
            yield each.name, f"identity {identity.kind} takes no {each.name}", hint
