"""The options of an Event Grid source and target.

What it is: what a read and a write take, each declared once, and the reading of it. What it is not: a client.

Invariants:
    I1. Every option that is unknown or malformed is refused by name before anything connects, all at once.
    I2. No option holds a secret: references are resolved by the process that connects, each time that it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.listen.option import LISTENER, ListenOptions, listen_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault

__all__ = [
    "SERVICE",
    "SOURCE",
    "TARGET",
    "PullOptions",
    "ServiceOptions",
    "TargetOptions",
    "read_source",
    "read_target",
]

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
_IGNORED = ("entity_type", "dead_letters", "duplicates")

SERVICE = (
    Setting(
        name="endpoint",
        kind=Kind.TEXT,
        default="",
        example="https://flights.westeurope-1.eventgrid.azure.net",
        description="Of the namespace, or of a custom topic.",
    ),
    Setting(
        name="tier",
        kind=Kind.CHOICE,
        choices=("namespace", "topic"),
        default="namespace",
        description="What the endpoint is: of a `namespace`, whose topics are entities, or of one custom `topic`.",
    ),
    Setting(
        name="key",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:EVENT_GRID_KEY",
        description=f"An access key; without, the `identity` is used. {_REFERENCE}",
    ),
    Setting(
        name="identity",
        kind=Kind.CHOICE,
        choices=("default",),
        default="default",
        description="Without `key`: who sends and receives. `default`: azure-identity's DefaultAzureCredential.",
    ),
    Setting(
        name="schema",
        kind=Kind.CHOICE,
        choices=("cloudevents", "eventgrid"),
        default="cloudevents",
        description="What a message becomes. Namespaces take CloudEvents only.",
    ),
    Setting(
        name="delivery",
        kind=Kind.CHOICE,
        choices=("pull", "push"),
        default="pull",
        description="How a source gets its events: it pulls them from a subscription of a namespace, or they are pushed to its listener.",
    ),
    Setting(
        name="lock_seconds",
        kind=Kind.INTEGER,
        default=60,
        minimum=2,
        maximum=300,
        description="With pull: how long the subscription locks an event that was received (its receiveLockDuration).",
    ),
    Setting(
        name="rejects",
        kind=Kind.BOOLEAN,
        default=False,
        description="With pull: whether the subscription has a dead-letter destination, so that an event can be set aside by rejecting it. "
        "Without one Event Grid would drop it; then the route stops instead.",
    ),
    Setting(
        name="in_flight",
        kind=Kind.INTEGER,
        default=5000,
        minimum=1,
        maximum=100_000,
        description="With pull: events that are locked for this reader at once.",
    ),
    Setting(
        name="parallel",
        kind=Kind.INTEGER,
        default=1,
        minimum=1,
        maximum=64,
        description="Requests that publish at a time. With more than one, events do not keep their order.",
    ),
    Setting(
        name="timeout_seconds",
        kind=Kind.NUMBER,
        default=30.0,
        minimum=1,
        maximum=300,
        description="How long one request may take.",
    ),
    Setting(
        name="ca_file",
        kind=Kind.PATH,
        default="",
        example="grid/ca.pem",
        description="Certificates to trust instead of the system's.",
    ),
)
_ENTITY = Setting(name="entity", kind=Kind.TEXT, required=True, example="flights", description="The topic.")
_SUBSCRIPTION = Setting(
    name="subscription", kind=Kind.TEXT, default="", example="isthmus", description="With pull: the event subscription."
)
_LISTENER = tuple(setting for setting in LISTENER if setting.name != "identity")
SOURCE = Spec("eventgrid source", "Options of an Event Grid source.", (*SERVICE, *_LISTENER, _ENTITY, _SUBSCRIPTION))
TARGET = Spec("eventgrid target", "Options of an Event Grid target.", (*SERVICE, _ENTITY, *COPY_SETTINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How the service is reached; see `SERVICE`."""

    endpoint: str
    tier: str
    key: str
    identity: str
    timeout_seconds: float
    ca_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """A subscription that a route reads."""

    service: ServiceOptions
    entity: str
    subscription: str
    lock_seconds: int
    rejects: bool
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A topic that a route writes; see `TARGET`."""

    service: ServiceOptions
    entity: str
    schema: str
    parallel: int
    copying: CopyOptions


def read_source(options: Mapping[str, str]) -> PullOptions | ListenOptions:
    """The options of a source: of a subscription, or of a listener.

    Raises:
        ConfigError: an option is of no use.
    """
    values = parse_options(SOURCE, options, ignore=_IGNORED)
    if values["delivery"] == "push":
        return listen_options("eventgrid source", values)
    faults = []
    if not values["endpoint"]:
        faults.append(Fault("eventgrid source needs endpoint", "write endpoint: https://…, or delivery: push"))
    if not values["subscription"]:
        faults.append(Fault("eventgrid source needs subscription", "write the event subscription, or delivery: push"))
    if values["tier"] != "namespace":
        faults.append(Fault("eventgrid source: a custom topic has no pull delivery", "write delivery: push"))
    if faults:
        raise ConfigError(faults)
    names = ("entity", "subscription", "lock_seconds", "rejects", "in_flight")
    return PullOptions(service=_service(values), **{name: values[name] for name in names})


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is of no use.
    """
    listener = tuple(setting.name for setting in _LISTENER)
    values = parse_options(TARGET, options, ignore=(*_IGNORED, "subscription", *listener))
    faults = []
    if not values["endpoint"]:
        faults.append(Fault("eventgrid target needs endpoint", "write endpoint: https://…"))
    if values["tier"] == "namespace" and values["schema"] != "cloudevents":
        faults.append(Fault("eventgrid target: a namespace takes CloudEvents only", "write schema: cloudevents"))
    if faults:
        raise ConfigError(faults)
    names = ("entity", "schema", "parallel")
    service = _service(values)
    return TargetOptions(service=service, copying=copy_options(values), **{name: values[name] for name in names})


def _service(values: Mapping[str, object]) -> ServiceOptions:
    timeout = values["timeout_seconds"]
    assert isinstance(timeout, int | float)
    return ServiceOptions(
        endpoint=str(values["endpoint"]),
        tier=str(values["tier"]),
        key=str(values["key"] or ""),
        identity=str(values["identity"]),
        timeout_seconds=float(timeout),
        ca_file=str(values["ca_file"] or ""),
    )
