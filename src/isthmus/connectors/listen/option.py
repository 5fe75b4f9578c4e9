"""The options of a listener.

What it is: what a source takes that is sent its messages by HTTP. What it is not: the listener (`listener`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.connectors.spec import Kind, Setting
from isthmus.errors import ConfigError, Fault

__all__ = ["LISTENER", "ListenOptions", "listen_options"]

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."

LISTENER = (
    Setting(
        name="listen",
        kind=Kind.TEXT,
        default="",
        example="0.0.0.0:8443",
        description="Where the listener listens: address and port. Events are posted to the path that the entity's name is.",
    ),
    Setting(
        name="spool",
        kind=Kind.PATH,
        default="",
        example="/var/lib/isthmus/hooks",
        description="Folder, on a disk of the machine that listens: a request is answered once its events are there. One folder for each "
        "listener.",
    ),
    Setting(
        name="auth",
        kind=Kind.CHOICE,
        choices=("none", "bearer", "hmac"),
        default="none",
        description="How requests have to prove where they come from: not, by a `bearer` token, or by an `hmac` signature.",
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
        name="certificate_file",
        kind=Kind.PATH,
        default="",
        example="hook/server.pem",
        description="The listener's certificate and those that prove it, PEM; without, it listens without TLS.",
    ),
    Setting(
        name="key_file",
        kind=Kind.PATH,
        default="",
        example="hook/server-key.pem",
        description="The certificate's private key, PEM; empty: it stands in `certificate_file`.",
    ),
    Setting(
        name="max_body_bytes",
        kind=Kind.INTEGER,
        default=1 << 20,
        minimum=1,
        maximum=256 << 20,
        description="The largest body of a request that is taken; a larger one is answered 413.",
    ),
    Setting(
        name="spool_bytes",
        kind=Kind.INTEGER,
        default=1 << 30,
        minimum=4096,
        description="How much the folder may hold; then requests are answered 503 with Retry-After.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """A listener; see `LISTENER`."""

    host: str
    port: int
    entity: str
    spool: Path
    auth: str
    secret: str
    signature: str
    certificate_file: str
    key_file: str
    max_body_bytes: int
    spool_bytes: int

    @property
    def path(self) -> str:
        """Where events are posted to."""
        return f"/{self.entity.strip('/')}"


def listen_options(what: str, values: dict[str, Any]) -> ListenOptions:
    """The options of a listener, of what was read.

    Raises:
        ConfigError: they are of no use together.
    """
    host, _, port = str(values["listen"]).rpartition(":")
    faults = []
    if not host or not (port.isascii() and port.isdigit() and 0 <= int(port) < 1 << 16):
        faults.append(Fault(f"{what}: listen is no address and port", "write listen: 0.0.0.0:8443"))
    if not values["spool"]:
        faults.append(Fault(f"{what} needs spool", "write spool: /var/lib/isthmus/hooks"))
    if (values["auth"] != "none") != bool(values["secret"]):
        faults.append(Fault(f"{what}: auth and secret go together", "write auth: hmac and secret: env:NAME"))
    if values["key_file"] and not values["certificate_file"]:
        faults.append(Fault(f"{what}: key_file needs certificate_file", "write both"))
    if faults:
        raise ConfigError(faults)
    entity = str(values["entity"])
    return ListenOptions(
        host=host.strip("[]"),
        port=int(port),
        entity=entity,
        spool=Path(str(values["spool"])) / entity.strip("/").replace("/", "%2F"),
        auth=values["auth"],
        secret=str(values["secret"]),
        signature=values["signature"],
        certificate_file=str(values["certificate_file"]),
        key_file=str(values["key_file"]),
        max_body_bytes=values["max_body_bytes"],
        spool_bytes=values["spool_bytes"],
    )
