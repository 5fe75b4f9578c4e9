"""The options of a RabbitMQ source and a RabbitMQ target.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from isthmus.connectors.copier import COPY_SETTINGS
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.kind.rabbitmq import RABBITMQ, addresses_of, rabbitmq_faults

__all__ = [
    "ADMINISTRATION",
    "SOURCE",
    "TARGET",
    "BrokerOptions",
    "SourceOptions",
    "TargetOptions",
    "read_broker",
    "read_source",
    "read_target",
]

# The settings of a namespace of this kind (`isthmus.topology.kind`).
BROKER = RABBITMQ.settings
SHORT_BYTES = 255

_TYPE = Setting(
    name="entity_type",
    kind=Kind.CHOICE,
    choices=("queue", "topic"),
    default="queue",
    description="Type of `entity`: a queue, or an exchange.",
)
SOURCE = Spec(
    "rabbitmq source",
    "Options of a RabbitMQ source.",
    (
        *BROKER,
        Setting(
            name="entity",
            kind=Kind.TEXT,
            required=True,
            example="orders",
            description="The queue; with entity_type=topic the exchange, whose queue `subscription` is read.",
        ),
        _TYPE,
        Setting(
            name="subscription",
            kind=Kind.TEXT,
            default="",
            example="orders-isthmus",
            description="With entity_type=topic: the queue that is bound to the exchange.",
        ),
        Setting(
            name="prefetch",
            kind=Kind.INTEGER,
            default=2000,
            minimum=1,
            maximum=65535,
            description="Maximum number of unacknowledged messages.",
        ),
        Setting(
            name="consumer",
            kind=Kind.CHOICE,
            choices=("auto", "exclusive", "shared"),
            default="auto",
            description="`exclusive`: no other consumer reads the queue, as the order requires; `shared`: others may. `auto`: "
            "exclusive if the route keeps order.",
        ),
        Setting(
            name="dead_letters",
            kind=Kind.TEXT,
            default="",
            description="Queue for messages that are set aside, with the reason in headers; published with a confirm before the message is "
            "acknowledged. The queue must exist. Empty: as `dead_letter_exchange` says.",
        ),
    ),
)
TARGET = Spec(
    "rabbitmq target",
    "Options of a RabbitMQ target.",
    (
        *BROKER,
        Setting(
            name="entity",
            kind=Kind.TEXT,
            required=True,
            example="orders",
            description="The queue; with entity_type=topic the exchange to publish to.",
        ),
        _TYPE,
        Setting(
            name="routing_key",
            kind=Kind.TEXT,
            default="",
            description="With entity_type=topic: the routing key of every copy. Empty: the message's routing key at RabbitMQ, else its subject.",
        ),
        Setting(
            name="max_message_bytes",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="The largest body that the broker accepts (its `max_message_size`, 128 MiB by default). 0: as reported by the broker "
            "when it refuses one.",
        ),
        Setting(
            name="stall_seconds",
            kind=Kind.NUMBER,
            default=25.0,
            minimum=1,
            maximum=3600,
            description="How long sent messages may stay unconfirmed before the connection counts as lost.",
        ),
        Setting(
            name="duplicates",
            kind=Kind.CHOICE,
            choices=("auto", "origin", "message-id", "allow"),
            default="auto",
            description="No effect: RabbitMQ suppresses no duplicates.",
        ),
        *COPY_SETTINGS,
    ),
)
ADMINISTRATION = Spec("rabbitmq broker", "Options of a broker's administration.", BROKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How to reach a broker; secrets are references."""

    host: str
    virtual_host: str = "/"
    mechanism: str = "PLAIN"
    username: str = ""
    password: str = ""
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    heartbeat_seconds: int = 20
    management: str = ""
    queue_type: str = "quorum"
    exchange_type: str = "topic"
    dead_letter_exchange: bool = False

    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports."""
        return addresses_of(self.host, self.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """Options of a source."""

    entity: str
    entity_type: str = "queue"
    subscription: str = ""
    prefetch: int = 2000
    consumer: str = "auto"
    dead_letters: str = ""

    @property
    def queue(self) -> str:
        """The queue that is read."""
        return self.subscription if self.entity_type == "topic" else self.entity

    def origin_of(self, position: int) -> str:
        """The queue: its deliveries have no lasting numbers."""
        del position
        return self.queue


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(BrokerOptions):
    """Options of a target."""

    entity: str
    entity_type: str = "queue"
    duplicates: str = "auto"
    routing_key: str = ""
    max_message_bytes: int = 0
    stall_seconds: float = 25.0
    origin: str = ""
    target: str = ""
    hop_budget: int = HOP_BUDGET
    mark: str = ""
    mark_value: str = "message-id"
    trusts_provenance: bool = False
    policy: str = ""

    @property
    def exchange(self) -> str:
        """The exchange to publish to; empty: the default exchange, which routes to the queue."""
        return self.entity if self.entity_type == "topic" else ""


Options = TypeVar("Options", bound=BrokerOptions)


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return _read(SOURCE, SourceOptions, options)


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return _read(TARGET, TargetOptions, options)


def read_broker(options: Mapping[str, str]) -> BrokerOptions:
    """The options of an administration or a probe.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return _read(ADMINISTRATION, BrokerOptions, options)


def _read(spec: Spec, kind: type[Options], options: Mapping[str, str]) -> Options:
    values = parse_options(spec, options)
    values = {name: str(value) if isinstance(value, SecretReference) else value for name, value in values.items()}
    known = {each.name for each in fields(kind)}
    made = kind(**{name: value for name, value in values.items() if name in known})
    faults = [
        Fault(f"{spec.name}: {message}", hint) for message, hint in (*_broker_faults(made), *_entity_faults(made))
    ]
    if faults:
        raise ConfigError(faults)
    return made


def _broker_faults(made: BrokerOptions) -> Iterator[tuple[str, str]]:
    values = {each.name: getattr(made, each.name) for each in BROKER}
    for _, message, hint in rabbitmq_faults(values, lambda name, value: f"{name}={value}"):
        yield message, hint


def _entity_faults(made: BrokerOptions) -> Iterator[tuple[str, str]]:
    if isinstance(made, SourceOptions):
        for name in ("entity", "subscription", "dead_letters"):
            yield from _too_long(name, getattr(made, name))
        if (made.entity_type == "topic") != bool(made.subscription):
            yield "entity_type=topic and subscription go together", "write subscription=QUEUE with entity_type=topic"
        if made.dead_letters and made.dead_letters == made.queue:
            yield "dead_letters is the queue itself", "write another queue"
    if isinstance(made, TargetOptions):
        for name in ("entity", "routing_key"):
            yield from _too_long(name, getattr(made, name))
        if made.routing_key and made.entity_type != "topic":
            yield "routing_key needs an exchange", "write entity_type=topic, or remove routing_key"
        if made.origin and "/" not in made.origin:
            yield "origin has no alias", "write alias/entity"
        try:
            CopyPolicy.from_text(made.policy)
        except InvalidArgumentError as error:
            yield f"policy: {error}", "leave the policy to a task of a federation file"


def _too_long(name: str, value: str) -> Iterator[tuple[str, str]]:
    if len(value.encode()) > SHORT_BYTES:
        yield f"{name} has {len(value.encode())} bytes; RabbitMQ accepts {SHORT_BYTES}", "write a shorter name"
