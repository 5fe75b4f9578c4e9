"""The options of an HTTP target and of a listener.

What it is: what a read and a write take, each declared once, and the reading of it. What it is not: a client (`client`) or a listener
(`isthmus.connectors.listen`).

Invariants:
    I1. Every option that is unknown or malformed is refused by name before anything connects, all at once.
    I2. No option holds a secret: references are resolved by the process that connects, each time that it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.listen.option import LISTENER, ListenOptions, listen_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault

__all__ = ["ENTITY_OPTIONS", "SERVER", "SOURCE", "TARGET", "TargetOptions", "read_source", "read_target"]

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
# What routes tell of an entity, and an address does not need.
ENTITY_OPTIONS = ("entity_type", "subscription", "dead_letters", "duplicates")

SERVER = (
    Setting(
        name="url",
        kind=Kind.TEXT,
        default="",
        example="https://api.example.com/hooks",
        description="Where messages are posted to: this address and the entity's name as path.",
    ),
    Setting(
        name="auth",
        kind=Kind.CHOICE,
        choices=("none", "bearer", "hmac"),
        default="none",
        description="How requests prove where they come from: not, by a `bearer` token, or by an `hmac` signature.",
    ),
    Setting(
        name="secret",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:HOOK_SECRET",
        description=f"The token, or the key of the signature. {_REFERENCE}",
    ),
    Setting(
        name="signature",
        kind=Kind.CHOICE,
        choices=("standard", "sha256"),
        default="standard",
        description="With hmac: `standard`, the headers of Standard Webhooks, or `sha256`, the header X-Hub-Signature-256.",
    ),
    Setting(
        name="mode",
        kind=Kind.CHOICE,
        choices=("structured", "binary", "body"),
        default="structured",
        description="What a message becomes: a CloudEvent in `structured` or `binary` mode, or its `body` with its properties as headers.",
    ),
    Setting(
        name="parallel",
        kind=Kind.INTEGER,
        default=1,
        minimum=1,
        maximum=64,
        description="Requests at a time. With more than one, messages do not keep their order.",
    ),
    Setting(
        name="timeout_seconds",
        kind=Kind.NUMBER,
        default=30.0,
        minimum=0.1,
        maximum=600,
        description="How long one request may take; then nobody knows what became of it, and it is made again with the same id.",
    ),
    Setting(
        name="ca_file",
        kind=Kind.PATH,
        default="",
        example="hook/ca.pem",
        description="Certificates to trust instead of the system's.",
    ),
    Setting(
        name="client_certificate_file",
        kind=Kind.PATH,
        default="",
        example="hook/client.pem",
        description="With mutual TLS: this client's certificate, PEM.",
    ),
    Setting(
        name="client_key_file",
        kind=Kind.PATH,
        default="",
        example="hook/client-key.pem",
        description="With mutual TLS: its private key, PEM.",
    ),
)
_ENTITY = Setting(name="entity", kind=Kind.TEXT, required=True, example="flights", description="Path of the address.")
TARGET = Spec("http target", "Options of an HTTP target.", (*SERVER, _ENTITY, *COPY_SETTINGS))
SOURCE = Spec("http source", "Options of an HTTP listener.", (*LISTENER, _ENTITY))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where a route posts to; see `TARGET`."""

    url: str
    entity: str
    auth: str
    secret: str
    signature: str
    mode: str
    parallel: int
    timeout_seconds: float
    ca_file: str
    client_certificate_file: str
    client_key_file: str
    copying: CopyOptions

    @property
    def path(self) -> str:
        """What stands behind the address."""
        return f"/{self.entity.strip('/')}" if self.entity.strip("/") else ""


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is of no use.
    """
    names = [setting.name for setting in LISTENER if setting.name not in {each.name for each in SERVER}]
    values = parse_options(TARGET, options, ignore=(*ENTITY_OPTIONS, *names))
    values = {name: str(value) if name.endswith(("_file", "secret")) else value for name, value in values.items()}
    made = TargetOptions(copying=copy_options(values), **values)
    faults = []
    if not made.url:
        faults.append(Fault("http target needs url", "write url: https://host/path"))
    elif made.auth != "none" and made.url.startswith("http://") and not _is_local(made.url):
        faults.append(Fault("http target: a secret would be sent without TLS", "write url: https://…"))
    if (made.auth != "none") != bool(made.secret):
        faults.append(Fault("http target: auth and secret go together", "write auth: hmac and secret: env:NAME"))
    if faults:
        raise ConfigError(faults)
    return made


def read_source(options: Mapping[str, str]) -> ListenOptions:
    """The options of a source.

    Raises:
        ConfigError: an option is of no use.
    """
    names = [setting.name for setting in SERVER if setting.name not in {each.name for each in LISTENER}]
    values: dict[str, Any] = parse_options(SOURCE, options, ignore=(*ENTITY_OPTIONS, *names))
    return listen_options("http source", values)


def _is_local(url: str) -> bool:
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0] or url.partition("://")[2].partition("/")[0]
    return host in ("127.0.0.1", "localhost", "[::1]")
