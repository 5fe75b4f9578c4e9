"""The options of a RabbitMQ source and a RabbitMQ target.

What it is: what a read and a write take, each declared once, and the reading of it. What it is not: a client.

Invariants:
    I1. Every option that is unknown or malformed is refused by name before anything connects, all at once.
    I2. No option holds a secret: references are resolved by the process that connects, each time that it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.topology.reference import SecretReference

__all__ = [
    "SOURCE",
    "TARGET",
    "BrokerOptions",
    "SourceOptions",
    "TargetOptions",
    "read_source",
    "read_target",
]

_REFERENCE = "Reference: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
_EXAMPLE = "env:NAME"
PORT, TLS_PORT = 5672, 5671

BROKER = (
    Setting(
        name="host",
        kind=Kind.TEXT,
        required=True,
        example="rabbit-1.example.com:5671,rabbit-2.example.com:5671",
        description="Addresses of the nodes, separated by commas; they are tried in turn. The port is 5672, with TLS 5671.",
    ),
    Setting(name="virtual_host", kind=Kind.TEXT, default="/", example="orders", description="The virtual host."),
    Setting(
        name="mechanism",
        kind=Kind.CHOICE,
        choices=("PLAIN", "EXTERNAL"),
        default="PLAIN",
        description="How to log in: by user name and password, or by the client's certificate.",
    ),
    Setting(name="username", kind=Kind.TEXT, default="", example="isthmus", description="With PLAIN: who."),
    Setting(
        name="password",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example=_EXAMPLE,
        description=f"With PLAIN: the password. {_REFERENCE}",
    ),
    Setting(name="tls", kind=Kind.BOOLEAN, default=False, example="true", description="Whether TLS is used."),
    Setting(
        name="ca_file",
        kind=Kind.PATH,
        default="",
        example="rabbitmq/ca.pem",
        description="With TLS: certificates to trust instead of the system's.",
    ),
    Setting(
        name="certificate_file",
        kind=Kind.PATH,
        default="",
        example="rabbitmq/client.pem",
        description="With TLS: this client's certificate, PEM.",
    ),
    Setting(
        name="key_file",
        kind=Kind.PATH,
        default="",
        example="rabbitmq/client-key.pem",
        description="With TLS: its private key, PEM.",
    ),
    Setting(
        name="key_password",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example=_EXAMPLE,
        description=f"The password of the private key. {_REFERENCE}",
    ),
    Setting(
        name="heartbeat_seconds",
        kind=Kind.INTEGER,
        default=20,
        minimum=1,
        maximum=600,
        description="A connection over which nothing came for twice as long is lost.",
    ),
)

SOURCE = Spec(
    "rabbitmq source",
    "Options of a RabbitMQ source.",
    (
        *BROKER,
        Setting(name="queue", kind=Kind.TEXT, required=True, example="orders", description="The queue."),
        Setting(
            name="prefetch",
            kind=Kind.INTEGER,
            default=2000,
            minimum=1,
            maximum=65535,
            description="How many messages RabbitMQ gives that are not acknowledged yet.",
        ),
        Setting(
            name="consumer",
            kind=Kind.CHOICE,
            choices=("auto", "exclusive", "shared"),
            default="auto",
            description="`exclusive`: no other consumer reads the queue, which the order needs; `shared`: others may. `auto`: "
            "exclusive where the route keeps order.",
        ),
        Setting(
            name="dead_letter_queue",
            kind=Kind.TEXT,
            default="",
            description="Where messages go that are set aside, with the reason in headers; published with a confirm before the message is "
            "acknowledged. The queue has to be there.",
        ),
        Setting(
            name="dead_letter_exchange",
            kind=Kind.BOOLEAN,
            default=False,
            description="The queue has a dead-letter exchange: messages that are set aside are rejected, and RabbitMQ moves them there, "
            "without a reason. Where it has none, RabbitMQ would drop them.",
        ),
    ),
)
TARGET = Spec(
    "rabbitmq target",
    "Options of a RabbitMQ target.",
    (
        *BROKER,
        Setting(
            name="queue", kind=Kind.TEXT, default="", example="orders", description="The queue; either this or exchange."
        ),
        Setting(name="exchange", kind=Kind.TEXT, default="", example="orders", description="The exchange to publish to."),
        Setting(
            name="routing_key",
            kind=Kind.TEXT,
            default="",
            description="With exchange: the routing key of every copy. Empty: the one that the message had at RabbitMQ, else its subject.",
        ),
        Setting(
            name="max_message_bytes",
            kind=Kind.INTEGER,
            default=0,
            minimum=0,
            description="The largest body that the broker takes (`max_message_size` there, 128 MiB by default). 0: as the broker says "
            "when it refuses one.",
        ),
        Setting(
            name="stall_seconds",
            kind=Kind.NUMBER,
            default=25.0,
            minimum=1,
            maximum=3600,
            description="How long the broker may confirm nothing that was sent before the connection is given up.",
        ),
        Setting(
            name="origin",
            kind=Kind.TEXT,
            default="",
            description="Alias/entity to record as a hop of provenance; empty: record none.",
        ),
        Setting(
            name="target",
            kind=Kind.TEXT,
            default="",
            description="Alias of the target broker, to hold back messages that have been there; empty: do not look.",
        ),
        Setting(
            name="hop_budget", kind=Kind.INTEGER, default=8, minimum=1, description="How many hops a message may make."
        ),
        Setting(
            name="mark",
            kind=Kind.TEXT,
            default="",
            description="With origin: header that every copy is marked with; empty: none.",
        ),
        Setting(
            name="mark_value",
            kind=Kind.CHOICE,
            choices=("message-id", "number"),
            default="message-id",
            description="What the mark holds: `message-id` (the copy's MessageId) or `number` (1).",
        ),
        Setting(
            name="trusts_provenance",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether provenance counts though a step of the route has changed the message that it was made for.",
        ),
        Setting(
            name="policy",
            kind=Kind.TEXT,
            default="",
            description="What copies differ in from their originals, as a task of a federation file says it (JSON of a copy policy); "
            "empty: in nothing but mark, provenance and what is left of TimeToLive.",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """How a broker is reached; secrets are references."""

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

    def addresses(self) -> list[tuple[str, int]]:
        """Hosts and ports.

        Raises:
            ValueError: a port is none.
        """
        found = []
        for each in self.host.split(","):
            host, colon, port = each.strip().rpartition(":")
            if not colon or port.endswith("]"):
                host, port = each.strip(), str(TLS_PORT if self.tls else PORT)
            found.append((host.strip("[]"), int(port)))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(BrokerOptions):
    """Options of a source."""

    queue: str
    prefetch: int = 2000
    consumer: str = "auto"
    dead_letter_queue: str = ""
    dead_letter_exchange: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(BrokerOptions):
    """Options of a target."""

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    max_message_bytes: int = 0
    stall_seconds: float = 25.0
    origin: str = ""
    target: str = ""
    hop_budget: int = 8
    mark: str = ""
    mark_value: str = "message-id"
    trusts_provenance: bool = False
    policy: str = ""

    @property
    def entity(self) -> str:
        """The queue, or the exchange."""
        return self.queue or self.exchange


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


def _read(spec: Spec, kind: type[Options], options: Mapping[str, str]) -> Options:
    values = parse_options(spec, options)
    values = {name: str(value) if isinstance(value, SecretReference) else value for name, value in values.items()}
    known = {each.name for each in fields(kind)}
    made = kind(**{name: value for name, value in values.items() if name in known})
    faults = [Fault(f"{spec.name}: {message}", hint) for message, hint in (*_broker_faults(made), *_entity_faults(made))]
    if faults:
        raise ConfigError(faults)
    return made


def _broker_faults(made: BrokerOptions) -> Iterator[tuple[str, str]]:
    try:
        if any(not host or not 0 < port < 65536 for host, port in made.addresses()):
            raise ValueError
    except ValueError:
        yield f"host={made.host} is no list of addresses", "write host=rabbit-1.example.com:5672"
    if made.mechanism == "PLAIN":
        for name, example in (("username", "NAME"), ("password", _EXAMPLE)):
            if not getattr(made, name):
                yield f"PLAIN needs {name}", f"write {name}={example}"
    else:
        if made.username or made.password:
            yield "username and password need PLAIN", "remove them, or write mechanism=PLAIN"
        if not made.certificate_file:
            yield "EXTERNAL needs certificate_file", "write certificate_file=client.pem and key_file=client-key.pem"
    files = next((name for name in ("ca_file", "certificate_file", "key_file") if getattr(made, name)), "")
    if files and not made.tls:
        yield f"{files} needs TLS", "write tls=true"
    if bool(made.certificate_file) != bool(made.key_file):
        yield "certificate_file and key_file go together", "write both or none"


def _entity_faults(made: BrokerOptions) -> Iterator[tuple[str, str]]:
    if isinstance(made, SourceOptions):
        yield from _too_long("queue", made.queue)
        yield from _too_long("dead_letter_queue", made.dead_letter_queue)
        if made.dead_letter_queue == made.queue:
            yield "dead_letter_queue is the queue itself", "write another queue"
        if made.dead_letter_queue and made.dead_letter_exchange:
            yield "dead_letter_queue and dead_letter_exchange exclude each other", "write one of them"
    if isinstance(made, TargetOptions):
        for name in ("queue", "exchange", "routing_key"):
            yield from _too_long(name, getattr(made, name))
        if bool(made.queue) == bool(made.exchange):
            yield "a target is a queue or an exchange", "write queue=NAME or exchange=NAME, and not both"
        if made.routing_key and not made.exchange:
            yield "routing_key needs exchange", "write exchange=NAME, or remove routing_key"
        if made.origin and "/" not in made.origin:
            yield "origin has no alias", "write alias/entity"
        try:
            CopyPolicy.from_text(made.policy)
        except InvalidArgumentError as error:
            yield f"policy: {error}", "leave the policy to a task of a federation file"


def _too_long(name: str, value: str) -> Iterator[tuple[str, str]]:
    if len(value.encode()) > 255:
        yield f"{name} has {len(value.encode())} bytes; RabbitMQ takes 255", "write a shorter name"
