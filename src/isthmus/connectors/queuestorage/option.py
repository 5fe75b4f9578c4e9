"""The options of a Queue Storage source and target.

What it is: what a read and a write take, each declared once, and the reading of it. What it is not: a client (`client`).

Invariants:
    I1. Every option that is unknown or malformed is refused by name before anything connects, all at once.
    I2. No option holds a secret: references are resolved by the process that connects, each time that it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault

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

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
# Azure: the longest that a message is invisible, and lives.
LONGEST_SECONDS = 7 * 24 * 3600
# What routes tell of an entity, and a queue here does not need.
ENTITY_OPTIONS = ("entity_type", "subscription", "dead_letters", "duplicates")

ACCOUNT = (
    Setting(
        name="connection",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:STORAGE_CONNECTION",
        description=f"Connection string of the storage account, with its key or a SAS. {_REFERENCE}",
    ),
    Setting(
        name="account_url",
        kind=Kind.TEXT,
        default="",
        example="https://flights.queue.core.windows.net",
        description="Instead of `connection`: the account's queue endpoint, with `identity`.",
    ),
    Setting(
        name="identity",
        kind=Kind.CHOICE,
        choices=("default",),
        default="default",
        example="default",
        description="With `account_url`: who reads and writes there. `default`: azure-identity's DefaultAzureCredential.",
    ),
)
_QUEUE = Setting(name="entity", kind=Kind.TEXT, required=True, example="orders", description="The queue.")
_ENCODING = Setting(
    name="encoding",
    kind=Kind.CHOICE,
    choices=("base64", "text"),
    default="base64",
    description="How messages stand in the queue: `base64`, as Azure Functions and most SDKs have it, or as plain `text`.",
)
_TIMEOUT = Setting(
    name="timeout_seconds",
    kind=Kind.NUMBER,
    default=30.0,
    minimum=1,
    maximum=300,
    description="How long one request may take.",
)
SOURCE = Spec(
    "queuestorage source",
    "Options of a Queue Storage source.",
    (
        *ACCOUNT,
        _QUEUE,
        _ENCODING,
        Setting(
            name="visibility_seconds",
            kind=Kind.INTEGER,
            default=60,
            minimum=2,
            maximum=LONGEST_SECONDS,
            description="How long a message that was read stays invisible to others; renewed while it is on its way, and so how "
            "late it comes again when the reader dies.",
        ),
        Setting(
            name="max_dequeue_count",
            kind=Kind.INTEGER,
            default=100,
            minimum=0,
            description="A message that was read more often is put into the poison queue. Reading counts also when a route pauses or is "
            "restarted. 0: none is.",
        ),
        Setting(
            name="poison_queue",
            kind=Kind.TEXT,
            default="",
            description="Where messages go that are set aside, with the reason; it is made when it is needed. Empty: the queue's name "
            "and `-poison`.",
        ),
        Setting(
            name="in_flight",
            kind=Kind.INTEGER,
            default=1000,
            minimum=1,
            maximum=100_000,
            description="Messages that are invisible for this reader at once; each takes a request to renew.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=8,
            minimum=1,
            maximum=64,
            description="Requests that delete and renew at a time: each concerns one message.",
        ),
        Setting(
            name="poll_seconds",
            kind=Kind.NUMBER,
            default=1.0,
            minimum=0.05,
            maximum=60,
            description="How long to wait at most before an empty queue is read again.",
        ),
        _TIMEOUT,
    ),
)
TARGET = Spec(
    "queuestorage target",
    "Options of a Queue Storage target.",
    (
        *ACCOUNT,
        _QUEUE,
        _ENCODING,
        Setting(
            name="form",
            kind=Kind.CHOICE,
            choices=("envelope", "cloudevents", "body"),
            default="envelope",
            description="What a message becomes: `envelope` (JSON with its properties) or `cloudevents` (CloudEvents 1.0, JSON), both of which "
            "the way back opens; or its `body` alone, without properties and provenance.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Messages that are put at a time. With more than one they do not keep their order.",
        ),
        Setting(
            name="time_to_live_seconds",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="How long a message lives that has no TimeToLive of its own. 0: for ever.",
        ),
        _TIMEOUT,
        *COPY_SETTINGS,
    ),
)
_ACCOUNT_SPEC = Spec("queuestorage account", "Options of the administration of an account.", ACCOUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOptions:
    """How an account is reached; secrets are references."""

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
    parallel: int
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
        ConfigError: an option is of no use.
    """
    return _account(parse_options(_ACCOUNT_SPEC, options), _ACCOUNT_SPEC)


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: an option is of no use.
    """
    values = parse_options(SOURCE, options, ignore=ENTITY_OPTIONS)
    values["poison_queue"] = values["poison_queue"] or f"{values['entity']}-poison"
    return SourceOptions(account=_account(values, SOURCE), **values)


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is of no use.
    """
    values = parse_options(TARGET, options, ignore=ENTITY_OPTIONS)
    return TargetOptions(account=_account(values, TARGET), copying=copy_options(values), **values)


def _account(values: dict[str, Any], spec: Spec) -> AccountOptions:
    account = AccountOptions(**{setting.name: str(values.pop(setting.name)) for setting in ACCOUNT})
    if bool(account.connection) == bool(account.account_url):
        what = "both connection and account_url are" if account.connection else "neither connection nor account_url is"
        hint = "write connection=env:NAME, or account_url and identity"
        raise ConfigError([Fault(f"{spec.name}: {what} given", hint)])
    return account
