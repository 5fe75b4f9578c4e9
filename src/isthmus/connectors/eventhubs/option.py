"""The options of a source and a target of Event Hubs.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from isthmus.connectors.copier import LOG_COPY_SETTINGS
from isthmus.connectors.servicebus.option import SourceOptions as NamespaceOptions
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.kind.base import NamespaceKind
from isthmus.topology.kind.eventhubs import EVENT_HUBS

__all__ = [
    "ADMINISTRATION",
    "PLACE",
    "READING",
    "SOURCE",
    "TARGET",
    "WRITING",
    "HubOptions",
    "SourceOptions",
    "TargetOptions",
    "read_as",
    "read_hub",
    "read_source",
    "read_target",
]

_EXAMPLE = "env:NAME"

# The settings of a namespace of this kind (`isthmus.topology.kind.eventhubs`), by the options' names.
PLACE = tuple(replace(each, name=EVENT_HUBS.option(each.name)) for each in EVENT_HUBS.settings)
_TOPIC = Setting(name="topic", kind=Kind.TEXT, required=True, example="telemetry", description="The event hub.")

READING = (
    Setting(
        name="group",
        kind=Kind.TEXT,
        default="$Default",
        example="isthmus",
        description="The consumer group; a different one for each route and each application.",
    ),
    Setting(
        name="start",
        kind=Kind.CHOICE,
        choices=("earliest", "latest"),
        default="earliest",
        description="Start in a partition without checkpoint; a partition that was added later is read from its first event.",
    ),
    Setting(
        name="partitions",
        kind=Kind.TEXT,
        default="",
        example="0-3",
        description="Which partitions to read, e.g. `0-3,7`; empty: all. Several routes with different partitions share the work of a hub.",
    ),
    Setting(
        name="member",
        kind=Kind.TEXT,
        default="",
        description="Name of the reader in the namespace's diagnostics; empty: a generated name.",
    ),
    Setting(
        name="message_ids",
        kind=Kind.CHOICE,
        choices=("own", "offset"),
        default="own",
        description="MessageId of a message. `own`: the event's, else none; `offset`: where the event has none, "
        "`hub/partition/sequence number`, the same each time that the event is read.",
    ),
    Setting(
        name="keyless",
        kind=Kind.CHOICE,
        choices=("none", "partition"),
        default="none",
        description="Key of an event without partition key: `none`, or `partition` for one that names its partition, e.g. "
        "`partition-3`.",
    ),
    Setting(
        name="system_properties",
        kind=Kind.BOOLEAN,
        default=False,
        description="Whether partition, sequence number, offset, enqueued time and publisher become application properties "
        "(`eventhubs-partition` and so on), for systems without annotations.",
    ),
    Setting(
        name="dead_letter_topic",
        kind=Kind.TEXT,
        default="",
        description="An event hub of the same namespace for messages that are set aside, with the reason in properties: a log has no "
        "dead-letter queue. Empty: a message that would have to be set aside blocks the route.",
    ),
)
WRITING = (
    Setting(
        name="partitioning",
        kind=Kind.CHOICE,
        choices=("key", "source", "single"),
        default="key",
        description="Choice of the partition. `key`: by PartitionKey, else SessionId, hashed by Event Hubs; without both, the partition that "
        "the message had at its source log, else any. `source`: the partition at the source. `single`: the first, which keeps the "
        "order of a queue.",
    ),
    *LOG_COPY_SETTINGS,
)
SOURCE = Spec("eventhubs source", "Options of a source of Event Hubs.", (*PLACE, _TOPIC, *READING))
TARGET = Spec("eventhubs target", "Options of a target of Event Hubs.", (*PLACE, _TOPIC, *WRITING))
ADMINISTRATION = Spec("eventhubs namespace", "Options of a namespace's administration.", PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """How to reach a namespace; secrets are references."""

    connection: str = ""
    host: str = ""
    identity: str = "default"
    ca_file: str = ""
    transport_type: str = "amqp"
    checkpoints: str = ""
    checkpoint_container: str = ""
    checkpoint_connection: str = ""
    checkpoint_seconds: float = 0.5
    owner_level: int = 0
    topic: str = ""

    @property
    def servicebus_options(self) -> NamespaceOptions:
        """The same options for the connections of Service Bus, whose protocol this is."""
        return NamespaceOptions(
            connection=self.connection,
            host=self.host,
            identity=self.identity,
            ca_file=self.ca_file,
            transport_type=self.transport_type,
            entity=self.topic,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(HubOptions):
    """Options of a source."""

    group: str = "$Default"
    start: str = "earliest"
    partitions: str = ""
    member: str = ""
    message_ids: str = "own"
    keyless: str = "none"
    system_properties: bool = False
    dead_letter_topic: str = ""

    @property
    def chosen(self) -> frozenset[int] | None:
        """The partitions to read; None: all."""
        return _numbers(self.partitions) if self.partitions else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions(HubOptions):
    """Options of a target."""

    partitioning: str = "key"
    origin: str = ""
    target: str = ""
    hop_budget: int = HOP_BUDGET
    mark: str = ""
    mark_value: str = "message-id"
    trusts_provenance: bool = False
    policy: str = ""


Options = TypeVar("Options", bound=HubOptions)


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


def read_hub(options: Mapping[str, str]) -> HubOptions:
    """The options of an administration.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(ADMINISTRATION, HubOptions, options)


def read_as(
    spec: Spec, kind: type[Options], options: Mapping[str, str], namespace: NamespaceKind = EVENT_HUBS
) -> Options:
    """The options of a spec as a value of this type, whose fields have the names of the options; `namespace` is the kind of its namespace.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    values = parse_options(spec, options)
    faults = [Fault(f"{spec.name}: {message}", hint) for message, hint in _at_odds(values, namespace)]
    if faults:
        raise ConfigError(faults)
    known = {each.name for each in fields(kind)}
    given: dict[str, Any] = {
        name: str(value) if isinstance(value, SecretReference) else value
        for name, value in values.items()
        if name in known
    }
    return kind(**given)


def _at_odds(values: Mapping[str, Any], namespace: NamespaceKind) -> Iterator[tuple[str, str]]:
    """Contradictions between options: (message, hint)."""
    named = {each.name: values[namespace.option(each.name)] for each in namespace.settings}
    for _, message, hint in namespace.faults(named, lambda name, value: f"{namespace.option(name)}={value}"):
        yield message, hint
    if "group" in values and not values["checkpoints"] and not values["checkpoint_container"]:
        yield (
            "neither checkpoints nor checkpoint_container is given, which a source needs",
            "write checkpoints=FOLDER, or checkpoint_container=https://ACCOUNT.blob.core.windows.net/CONTAINER",
        )
    if values.get("partitions") and not _numbers(values["partitions"]):
        yield f"partitions: '{values['partitions']}' names no partitions", "write e.g. 0-3,7"
    if values.get("dead_letter_topic") and values["dead_letter_topic"].lower() == str(values.get("topic")).lower():
        yield "dead_letter_topic is the event hub itself", "write another event hub"
    if values.get("origin") and "/" not in values["origin"]:
        yield "origin has no alias", "write alias/entity"
    yield from _policy_faults(values.get("policy") or "")


def _numbers(text: str) -> frozenset[int]:
    """The partitions that `0-3,7` names; empty where it is malformed."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 4 or len(last) > 4:
            return frozenset()
        numbers = range(int(first), (int(last) if dash else int(first)) + 1)
        if not numbers:
            return frozenset()
        found.update(numbers)
    return frozenset(found)


def _policy_faults(text: str) -> Iterator[tuple[str, str]]:
    try:
        policy = CopyPolicy.from_text(text)
    except InvalidArgumentError as error:
        yield f"policy: {error}", "leave the policy to a task of a federation file"
        return
    for name in ("ttl_ceiling_ms", "deadline_ms"):
        if getattr(policy, name):
            yield (
                f"policy: {name} cannot be kept, because an event does not expire by itself",
                "write a target with queues and topics, or limit the retention of the event hub",
            )
