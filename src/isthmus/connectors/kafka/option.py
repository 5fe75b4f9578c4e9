"""The options of a Kafka source and a Kafka target.

What it is: the options of a read and a write, each declared once; their parsing; and the resulting settings of librdkafka.
What it is not: a client (`cluster`).

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
    I3. A setting of librdkafka on which order, acknowledgement or commit depend cannot be given, nor one with which records are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from isthmus.connectors.copier import LOG_COPY_SETTINGS
from isthmus.connectors.secret import resolve
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.topology.file.reference import SecretError, SecretReference
from isthmus.topology.kind.kafka import KAFKA, kafka_faults

__all__ = [
    "ADMINISTRATION",
    "PREFIX",
    "SOURCE",
    "TARGET",
    "ClusterOptions",
    "SourceOptions",
    "TargetOptions",
    "read_as",
    "read_cluster",
    "read_source",
    "read_target",
]

PREFIX = "kafka."
_EXAMPLE = "env:NAME"

# The settings of a namespace of this kind (`isthmus.topology.kind`), by the options' names.
_CLUSTER = tuple(replace(each, name=KAFKA.option(each.name)) for each in KAFKA.settings)
_TOPIC = Setting(name="topic", kind=Kind.TEXT, required=True, example="orders", description="The topic.")

SOURCE = Spec(
    "kafka source",
    "Options of a Kafka source.",
    (
        *_CLUSTER,
        _TOPIC,
        Setting(
            name="group",
            kind=Kind.TEXT,
            required=True,
            example="isthmus-orders",
            description="The consumer group that stores the route's offsets; a different one for each route.",
        ),
        Setting(
            name="start",
            kind=Kind.CHOICE,
            choices=("earliest", "latest"),
            default="earliest",
            description="The start of a group without a committed offset of the topic.",
        ),
        Setting(
            name="member",
            kind=Kind.TEXT,
            default="",
            description="Name of a static member of the group (`group.instance.id`): a reader of this name replaces one "
            "that died at once, instead of after `session_seconds`, and fences it. At most one reader may have it.",
        ),
        Setting(
            name="session_seconds",
            kind=Kind.NUMBER,
            default=10.0,
            minimum=6,
            maximum=300,
            description="After how long without a heartbeat the group considers a reader dead.",
        ),
        Setting(
            name="message_ids",
            kind=Kind.CHOICE,
            choices=("header", "offset"),
            default="header",
            description="MessageId of a message. `header`: the value of the header `amqp-message-id`, else none; `offset`: where "
            "there is no such header, `topic/partition/offset`, the same each time that the record is read.",
        ),
        Setting(
            name="keyless",
            kind=Kind.CHOICE,
            choices=("none", "partition"),
            default="none",
            description="Key of a record without key: `none`, or `partition` for one that names its partition, e.g. "
            "`partition-3`.",
        ),
        Setting(
            name="dead_letter_topic",
            kind=Kind.TEXT,
            default="",
            description="Topic for messages that are set aside, with the reason in headers: a log has no dead-letter queue. Empty: a "
            "message that would have to be set aside blocks the route.",
        ),
    ),
)
TARGET = Spec(
    "kafka target",
    "Options of a Kafka target.",
    (
        *_CLUSTER,
        _TOPIC,
        Setting(
            name="partitioning",
            kind=Kind.CHOICE,
            choices=("key", "source", "single"),
            default="key",
            description="Choice of the partition. `key`: by the key, hashed as by Java clients; without one, the partition that the "
            "record had at a Kafka source, else any. `source`: the partition at the source. `single`: the first, which keeps the "
            "order of a queue.",
        ),
        Setting(
            name="stall_seconds",
            kind=Kind.NUMBER,
            default=25.0,
            minimum=1,
            maximum=3600,
            description="How long sent records may stay unacknowledged before the connection counts as lost.",
        ),
        *LOG_COPY_SETTINGS,
    ),
)
ADMINISTRATION = Spec("kafka cluster", "Options of a cluster's administration.", _CLUSTER)

# Settings of isthmus: order, acknowledgement and commit depend on them.
_OWN = frozenset(
    """
    acks allow.auto.create.topics auto.commit.enable auto.offset.reset bootstrap.servers delivery.timeout.ms enable.auto.commit
    enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.partition.eof group.id group.instance.id
    message.send.max.retries message.timeout.ms metadata.broker.list partition.assignment.strategy partitioner request.required.acks
    retries sasl.mechanism sasl.mechanisms sasl.username security.protocol session.timeout.ms ssl.ca.location
    ssl.certificate.location ssl.key.location transactional.id
    """.split()
)
# librdkafka 2.16 seeks to a wrong byte of its answer after a batch whose checksum is wrong, and takes what it finds there for batches.
_CHECKSUMS = "check.crcs"
_FALSE = frozenset({"false", "f", "0"})
_SECRETS = {
    "sasl.password": "password",
    "ssl.key.password": "key_password",
    "sasl.oauthbearer.client.secret": "",
    "sasl.oauthbearer.client.credentials.client.secret": "",
    "sasl.oauthbearer.assertion.private.key.passphrase": "",
    "sasl.oauthbearer.assertion.private.key.pem": "",
    "sasl.oauthbearer.config": "",
    "ssl.key.pem": "",
    "ssl.keystore.password": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How to reach a cluster; secrets are references."""

    bootstrap_servers: str
    security_protocol: str
    sasl_mechanism: str
    username: str
    password: str
    ca_file: str
    certificate_file: str
    key_file: str
    key_password: str
    extra: tuple[tuple[str, str], ...] = ()

    def client(self) -> dict[str, Any]:
        """The settings of a client; resolves secrets, and may block for that.

        Raises:
            SecretError: a reference cannot be resolved.
        """
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "client.id": "isthmus",
            **{name: _revealed(name, value) for name, value in self.extra},
        }
        if self.security_protocol.startswith("sasl"):
            settings["sasl.mechanism"] = self.sasl_mechanism
            if self.username:
                settings["sasl.username"] = self.username
            if self.password:
                settings["sasl.password"] = resolve(self.password).reveal()
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
        }
        settings |= {name: path for name, path in files.items() if path}
        if self.key_password:
            settings["ssl.key.password"] = resolve(self.key_password).reveal()
        return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ClusterOptions):
    """Options of a source."""

    topic: str
    group: str
    start: str
    member: str
    session_seconds: float
    dead_letter_topic: str
    message_ids: str = "header"
    keyless: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(ClusterOptions):
    """Options of a target."""

    topic: str
    partitioning: str
    stall_seconds: float
    origin: str
    target: str
    hop_budget: int
    mark: str
    mark_value: str
    trusts_provenance: bool
    policy: str = ""


Options = TypeVar("Options", bound=ClusterOptions)


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


def read_cluster(options: Mapping[str, str]) -> ClusterOptions:
    """The options of an administration.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(ADMINISTRATION, ClusterOptions, options)


def read_as(spec: Spec, kind: type[Options], options: Mapping[str, str], *, ignore: tuple[str, ...] = ()) -> Options:
    """The options of a spec as a value of this type.

    Args:
        spec: the declared options.
        kind: the type, whose fields have the names of the options.
        options: as given.
        ignore: keys of another component.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    extra = {
        name.lower().removeprefix(PREFIX): value for name, value in options.items() if name.lower().startswith(PREFIX)
    }
    faults = _extra_faults(spec, extra)
    values: dict[str, Any] = {}
    try:
        values = parse_options(
            spec,
            {name: value for name, value in options.items() if not name.lower().startswith(PREFIX)},
            ignore=ignore,
        )
    except ConfigError as error:
        faults += error.faults
    if not faults:
        faults += [Fault(f"{spec.name}: {message}", hint) for message, hint in _at_odds(values)]
    if faults:
        raise ConfigError(faults)
    values = {name: str(value) if isinstance(value, SecretReference) else value for name, value in values.items()}
    known = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known}, extra=tuple(sorted(extra.items())))


def _extra_faults(spec: Spec, extra: Mapping[str, str]) -> list[Fault]:
    faults = []
    for name, value in extra.items():
        if name in _OWN:
            faults.append(Fault(f"{spec.name}: {PREFIX}{name} is set by isthmus", "remove it"))
        elif name == _CHECKSUMS and value.strip().lower() not in _FALSE:
            text = (
                "after a wrong checksum librdkafka reads on at an offset that it has taken from the bytes of a record"
            )
            faults.append(Fault(f"{spec.name}: {PREFIX}{name} cannot be used: {text}", "remove it"))
        elif _SECRETS.get(name):
            faults.append(
                Fault(f"{spec.name}: {PREFIX}{name} is an option of its own", f"write {_SECRETS[name]}={_EXAMPLE}")
            )
        elif name in _SECRETS:
            try:
                SecretReference.parse(value)
            except SecretError as error:
                faults.append(Fault(f"{spec.name}: {PREFIX}{name}: {error.reason}", f"write {PREFIX}{name}={_EXAMPLE}"))
    return faults


def _at_odds(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Contradictions between options: (message, hint)."""
    named = {each.name: values[KAFKA.option(each.name)] for each in KAFKA.settings}
    faults = [
        (message, hint) for _, message, hint in kafka_faults(named, lambda name, value: f"{KAFKA.option(name)}={value}")
    ]
    if values.get("origin") and "/" not in values["origin"]:
        faults.append(("origin has no alias", "write alias/entity"))
    if values.get("dead_letter_topic") and values["dead_letter_topic"] == values.get("topic"):
        faults.append(("dead_letter_topic is the topic itself", "write another topic"))
    return faults + list(_policy_faults(values.get("policy") or ""))


def _policy_faults(text: str) -> Iterator[tuple[str, str]]:
    try:
        policy = CopyPolicy.from_text(text)
    except InvalidArgumentError as error:
        yield f"policy: {error}", "leave the policy to a task of a federation file"
        return
    for name in ("ttl_ceiling_ms", "deadline_ms"):
        if getattr(policy, name):
            yield (
                f"policy: {name} cannot be kept, because a record of a log does not expire by itself",
                "write a target with queues and topics, or limit the retention of the topic",
            )


def _revealed(name: str, value: str) -> str:
    return resolve(value).reveal() if name in _SECRETS else value
