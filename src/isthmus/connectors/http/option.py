"""The options of an HTTP target and of a listener.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client (`client`) or a listener
(`isthmus.connectors.listen`).

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.listen.option import ListenOptions, listen_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault
from isthmus.topology.kind.http import HTTP

__all__ = ["ENTITY_OPTIONS", "SOURCE", "TARGET", "TargetOptions", "read_source", "read_target"]

# Options that routes set for an entity, and that an address does not need.
ENTITY_OPTIONS = ("entity_type", "subscription", "dead_letters", "duplicates")

_ENTITY = Setting(name="entity", kind=Kind.TEXT, required=True, example="flights", description="Path of the address.")
TARGET = Spec("http target", "Options of an HTTP target.", (*HTTP.settings, _ENTITY, *COPY_SETTINGS))
SOURCE = Spec("http source", "Options of an HTTP listener.", (*HTTP.settings, _ENTITY))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The address to which a route posts; see `TARGET`."""

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
        """The path after the address."""
        return f"/{self.entity.strip('/')}" if self.entity.strip("/") else ""


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(TARGET, options, ignore=ENTITY_OPTIONS)
    values = {name: str(value) if name.endswith(("_file", "secret")) else value for name, value in values.items()}
    copying = copy_options(values)
    made = TargetOptions(
        copying=copying, **{each.name: values[each.name] for each in fields(TargetOptions) if each.name in values}
    )
    faults = [Fault(f"http target: {what}", hint) for _, what, hint in HTTP.faults(values, _written)]
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
        ConfigError: an option is invalid.
    """
    values: dict[str, Any] = parse_options(SOURCE, options, ignore=ENTITY_OPTIONS)
    return listen_options("http source", values)


def _written(name: str, value: str) -> str:
    return f"{name}: {value}"


def _is_local(url: str) -> bool:
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0] or url.partition("://")[2].partition("/")[0]
    return host in ("127.0.0.1", "localhost", "[::1]")
