"""The options of a listener.

What it is: the options of a source that receives its messages by HTTP. What it is not: the listener (`listener`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.errors import ConfigError, Fault

__all__ = ["ListenOptions", "listen_options", "spool_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """A listener; see `isthmus.topology.kind.listener`."""

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
        """The path to which events are posted."""
        return f"/{self.entity.strip('/')}"


def listen_options(what: str, values: dict[str, Any]) -> ListenOptions:
    """The options of a listener, from parsed values.

    Raises:
        ConfigError: they contradict each other.
    """
    host, _, port = str(values["listen"]).rpartition(":")
    faults = []
    if not host or not (port.isascii() and port.isdigit() and 0 <= int(port) < 1 << 16):
        faults.append(Fault(f"{what}: listen is not an address and port", "write listen: 0.0.0.0:8443"))
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
        spool=_folder(str(values["spool"]), entity),
        auth=values["auth"],
        secret=str(values["secret"]),
        signature=values["signature"],
        certificate_file=str(values["certificate_file"]),
        key_file=str(values["key_file"]),
        max_body_bytes=values["max_body_bytes"],
        spool_bytes=values["spool_bytes"],
    )


def spool_of(kind: str, options: Mapping[str, str], entity: str) -> Path | None:
    """The folder in which a listener stores the events of an entity; None where there is no listener.

    Args:
        kind: of the namespace.
        options: the namespace's options.
        entity: the entity that a route reads.
    """
    is_pushed = kind != "eventgrid" or options.get("delivery") == "push"
    return _folder(options["spool"], entity) if is_pushed and options.get("listen") and options.get("spool") else None


def _folder(spool: str, entity: str) -> Path:
    return Path(spool) / entity.strip("/").replace("/", "%2F")
