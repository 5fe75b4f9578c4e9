"""The options of a source and a target at an AMQP 1.0 broker.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a connection (`remote`).

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from isthmus.connectors.copier import COPY_SETTINGS
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.kind.amqp import AMQP, amqp_faults

__all__ = [
    "BROKER",
    "SOURCE",
    "TARGET",
    "BrokerOptions",
    "SourceOptions",
    "TargetOptions",
    "read_as",
    "read_source",
    "read_target",
]

_BROKER = tuple(replace(each, name=AMQP.option(each.name)) for each in AMQP.settings)
_ENTITY = Setting(
    name="entity",
    kind=Kind.TEXT,
    required=True,
    example="orders",
    description="Address of the node at the broker: a queue's or topic's name, or the broker's own form of it, e.g. `/queue/orders` "
    "or `/exchange/flights` at RabbitMQ 3, `/queues/orders` at RabbitMQ 4.",
)
_ENTITY_TYPE = Setting(
    name="entity_type",
    kind=Kind.CHOICE,
    choices=("queue", "topic", "any"),
    default="any",
    description="Capability requested of the node, so that the broker selects, or creates, the right kind; `any`: none.",
)

SOURCE = Spec(
    "amqp source",
    "Options of a source at an AMQP 1.0 broker.",
    (
        *_BROKER,
        _ENTITY,
        _ENTITY_TYPE,
        Setting(
            name="subscription",
            kind=Kind.TEXT,
            default="",
            description="Name of a durable subscription of a topic: the broker keeps messages for it while no client reads. Use a different one "
            "for each route.",
        ),
        Setting(
            name="container_id",
            kind=Kind.TEXT,
            default="isthmus",
            description="With a subscription: the container id, to which durable subscriptions belong at most brokers.",
        ),
        Setting(
            name="dead_letters",
            kind=Kind.TEXT,
            default="",
            description="Address to which messages are sent that are set aside, with the reason in the application properties "
            "`DeadLetterReason` and `DeadLetterErrorDescription`. Empty: with `rejects` they are rejected; else the route stops.",
        ),
        Setting(
            name="max_message_bytes",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="The largest message that the source accepts, announced to the broker. 0: no limit.",
        ),
    ),
)
TARGET = Spec(
    "amqp target",
    "Options of a target at an AMQP 1.0 broker.",
    (
        *_BROKER,
        _ENTITY,
        _ENTITY_TYPE,
        Setting(
            name="max_message_bytes",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="The largest message that is sent; a larger one is set aside. 0: the broker's limit.",
        ),
        Setting(
            name="durable",
            kind=Kind.BOOLEAN,
            default=True,
            description="Whether every copy is durable, whether or not the original is; a broker that is killed loses messages that are not durable.",
        ),
        Setting(
            name="duplicates",
            kind=Kind.CHOICE,
            choices=("auto", "origin", "message-id", "allow"),
            default="auto",
            description="How a copy that is sent again is detected where the broker detects duplicates (ActiveMQ Artemis, by "
            "`_AMQ_DUPL_ID`). `auto`: by its origin, where that has numbers. `origin`: the same, and the MessageId is made of the origin. "
            "`message-id`: by its MessageId. `allow`: not at all.",
        ),
        *COPY_SETTINGS,
    ),
)
BROKER = Spec("amqp broker", "Options that reach a broker.", _BROKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a broker is reached; secrets are references."""

    url: str
    sasl: str
    username: str
    password: str
    virtual_host: str
    ca_file: str
    certificate_file: str
    key_file: str
    key_password: str
    rejects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """Options of a source."""

    entity: str
    entity_type: str
    subscription: str
    container_id: str
    dead_letters: str
    max_message_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(BrokerOptions):
    """Options of a target."""

    entity: str
    entity_type: str
    max_message_bytes: int
    durable: bool
    duplicates: str
    origin: str
    target: str
    hop_budget: int
    mark: str
    mark_value: str
    trusts_provenance: bool
    policy: str


Options = TypeVar("Options", bound=BrokerOptions)


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(SOURCE, SourceOptions, options)


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(TARGET, TargetOptions, options)


def read_as(spec: Spec, kind: type[Options], options: Mapping[str, str]) -> Options:
    """The options of a spec as a value of this type, whose fields have the names of the options.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    values = parse_options(spec, options)
    if faults := [Fault(f"{spec.name}: {message}", hint) for message, hint in _at_odds(values)]:
        raise ConfigError(faults)
    given: dict[str, Any] = {
        name: str(value) if isinstance(value, SecretReference) else value for name, value in values.items()
    }
    return kind(**{each.name: given[each.name] for each in fields(kind)})


def _at_odds(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Contradictions between options: (message, hint)."""
    named = {each.name: values[AMQP.option(each.name)] for each in AMQP.settings}
    for _, message, hint in amqp_faults(named, lambda name, value: f"{AMQP.option(name)}={value}"):
        yield message, hint
    if values.get("subscription") and values.get("entity_type") == "queue":
        yield "subscription: a queue has none", "write entity_type=topic"
    if values.get("dead_letters") and values["dead_letters"] == values.get("entity"):
        yield "dead_letters is the entity itself", "write another address"
    if values.get("origin") and "/" not in values["origin"]:
        yield "origin has no alias", "write alias/entity"
    try:
        CopyPolicy.from_text(values.get("policy") or "")
    except InvalidArgumentError as error:
        yield f"policy: {error}", "leave the policy to a task of a federation file"
