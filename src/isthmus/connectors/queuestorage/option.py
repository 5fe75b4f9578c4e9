"""The options of a Queue Storage source and target.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client (`client`).

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault
from isthmus.topology.identity import IdentityReference
from isthmus.topology.kind.queuestorage import QUEUE_STORAGE, queue_storage_faults

__all__ = [
    "ACCOUNT",
    "SOURCE",
    "TARGET",
    "AccountOptions",
    "SourceOptions",
    "TargetOptions",
    "read_account",
    "read_source",
    "read_target",
]

# Options that routes set for an entity, and that a queue here does not need.
ENTITY_OPTIONS = ("entity_type", "subscription", "duplicates")

_QUEUE = Setting(name="entity", kind=Kind.TEXT, required=True, example="orders", description="The queue.")
_DEAD_LETTERS = Setting(
    name="dead_letters",
    kind=Kind.TEXT,
    default="",
    example="orders-poison",
    description="The poison queue: for messages that are set aside, with the reason; it is created when needed. Empty: the queue's "
    "name and `-poison`.",
)
SOURCE = Spec(
    "queuestorage source", "Options of a Queue Storage source.", (*QUEUE_STORAGE.settings, _QUEUE, _DEAD_LETTERS)
)
TARGET = Spec(
    "queuestorage target", "Options of a Queue Storage target.", (*QUEUE_STORAGE.settings, _QUEUE, *COPY_SETTINGS)
)
ACCOUNT = Spec("queuestorage account", "Options of the administration of an account.", QUEUE_STORAGE.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOptions:
    """How to reach an account; secrets are references."""

    connection: str
    account_url: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """A queue that a route reads; see `SOURCE`."""

    account: AccountOptions
    entity: str
    encoding: str
    visibility_seconds: int
    max_dequeue_count: int
    poison_queue: str
    in_flight: int
    settling: int
    poll_seconds: float
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A queue that a route writes; see `TARGET`."""

    account: AccountOptions
    entity: str
    encoding: str
    form: str
    parallel: int
    time_to_live_seconds: int
    timeout_seconds: float
    copying: CopyOptions


def read_account(options: Mapping[str, str]) -> AccountOptions:
    """The options of an account.

    Raises:
        ConfigError: an option is invalid.
    """
    return _account(parse_options(ACCOUNT, options, ignore=ENTITY_OPTIONS), ACCOUNT)


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(SOURCE, options, ignore=ENTITY_OPTIONS)
    values["poison_queue"] = values["dead_letters"] or f"{values['entity']}-poison"
    return SourceOptions(account=_account(values, SOURCE), **_of(SourceOptions, values))


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(TARGET, options, ignore=(*ENTITY_OPTIONS, "dead_letters"))
    account = _account(values, TARGET)
    return TargetOptions(account=account, copying=copy_options(values), **_of(TargetOptions, values))


def _of(options: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(options) if each.name in values}


def _account(values: Mapping[str, Any], spec: Spec) -> AccountOptions:
    faults = [Fault(f"{spec.name}: {what}", hint) for _, what, hint in queue_storage_faults(values, _written)]
    if faults:
        raise ConfigError(faults)
    identity = str(IdentityReference.of(values))
    return AccountOptions(connection=str(values["connection"]), account_url=values["account_url"], identity=identity)


def _written(name: str, value: str) -> str:
    return f"{name}={value}"
