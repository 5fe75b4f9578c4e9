"""The options of a source that is a stream of RabbitMQ.

What it is: the options of a read, each declared once, and their parsing. What it is not: a client.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from urllib.parse import quote

from isthmus.connectors.checkpoint.checkpoint import GroupKey
from isthmus.connectors.rabbitmq.option import SHORT_BYTES, BrokerOptions
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.kind.rabbitmq_streams import BROKER, RABBITMQ_STREAMS

__all__ = [
    "ADMINISTRATION",
    "BROKER_NAMES",
    "SOURCE",
    "StreamNamespaceOptions",
    "StreamOptions",
    "read_namespace",
    "read_source",
]

# A name of a file has 255 bytes; a digest of 17 follows one of them, and a character needs up to 12.
_FILE_BYTES, _SHOWN_CHARACTERS = 220, 16
BROKER_NAMES = frozenset(each.name for each in BROKER)
SOURCE = Spec(
    "rabbitmq-streams source",
    "Options of a source that is a stream of RabbitMQ.",
    (
        *RABBITMQ_STREAMS.settings,
        Setting(name="topic", kind=Kind.TEXT, required=True, example="orders", description="The stream."),
        Setting(
            name="group",
            kind=Kind.TEXT,
            default="isthmus",
            description="Name of the checkpoint; a different one for each route.",
        ),
        Setting(
            name="start",
            kind=Kind.CHOICE,
            choices=("earliest", "latest"),
            default="earliest",
            description="Start without a checkpoint.",
        ),
        Setting(
            name="prefetch",
            kind=Kind.INTEGER,
            default=2000,
            minimum=1,
            maximum=65535,
            description="How many messages RabbitMQ delivers in advance; it delivers whole chunks, which may be more.",
        ),
        Setting(name="member", kind=Kind.TEXT, default="", description="No effect: a stream has no groups of readers."),
        Setting(
            name="message_ids",
            kind=Kind.CHOICE,
            choices=("own", "offset"),
            default="own",
            description="MessageId of a message. `own`: its own, else none; `offset`: where it has none, `stream/offset-digest`, the same "
            "each time that it is read.",
        ),
        Setting(
            name="keyless",
            kind=Kind.CHOICE,
            choices=("none", "partition"),
            default="none",
            description="No effect: a stream is one partition.",
        ),
        Setting(
            name="dead_letter_topic",
            kind=Kind.TEXT,
            default="",
            description="A queue or stream of the same virtual host for messages that are set aside, with the reason in headers. Empty: "
            "a message that would have to be set aside blocks the route.",
        ),
    ),
)
ADMINISTRATION = Spec("rabbitmq-streams broker", "Options of an administration or a query.", RABBITMQ_STREAMS.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNamespaceOptions(BrokerOptions):
    """How to reach a broker, and the store of checkpoints."""

    checkpoints: str = ""
    checkpoint_seconds: float = 0.5

    def key(self, cluster: str, stream: str, group: str) -> GroupKey:
        """The owner of a checkpoint: name of the cluster, virtual host, stream and group, as configured; a digest keeps the name of the
        folder short. Addresses of nodes may change.
        """
        names = f"{self.virtual_host}\0{stream}\0{group}"
        if _shown(cluster) != cluster:
            names = f"{cluster}\0{names}"
        digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        return GroupKey(f"{_shown(cluster)} {digest}", cluster, _shown(stream), _shown(group))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(StreamNamespaceOptions):
    """Options of a source."""

    topic: str
    group: str = "isthmus"
    start: str = "earliest"
    prefetch: int = 2000
    message_ids: str = "own"
    dead_letter_topic: str = ""

    @property
    def queue(self) -> str:
        """The stream that is read."""
        return self.topic

    @property
    def dead_letters(self) -> str:
        """The queue for messages that are set aside; empty: none."""
        return self.dead_letter_topic

    def origin_of(self, position: int) -> str:
        """Stream, partition and offset, as for every log: `isthmus verify` recognises a record that was set aside by it."""
        return f"{self.topic}/0/{position}"


def _shown(name: str) -> str:
    """A name, or its beginning if it is too long for a file name."""
    return name if len(quote(name, safe="")) <= _FILE_BYTES else name[:_SHOWN_CHARACTERS]


Options = TypeVar("Options", bound=StreamNamespaceOptions)


def read_source(options: Mapping[str, str]) -> StreamOptions:
    """The options of a source.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return _read(SOURCE, StreamOptions, options)


def read_namespace(options: Mapping[str, str]) -> StreamNamespaceOptions:
    """The options of an administration or a query.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return _read(ADMINISTRATION, StreamNamespaceOptions, options)


def _read(spec: Spec, kind: type[Options], options: Mapping[str, str]) -> Options:
    values = parse_options(spec, options)
    faults = [Fault(f"{spec.name}: {message}", hint) for message, hint in _at_odds(values)]
    if faults:
        raise ConfigError(faults)
    known = {each.name for each in fields(kind)}
    given: dict[str, Any] = {
        name: str(value) if isinstance(value, SecretReference) else value
        for name, value in values.items()
        if name in known
    }
    return kind(**given)


def _at_odds(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for _, message, hint in RABBITMQ_STREAMS.faults(values, lambda name, value: f"{name}={value}"):
        yield message, hint
    for name in ("topic", "dead_letter_topic"):
        if len(str(values.get(name) or "").encode()) > SHORT_BYTES:
            yield f"{name} has more than {SHORT_BYTES} bytes, which RabbitMQ does not accept", "write a shorter name"
    if values.get("dead_letter_topic") and values["dead_letter_topic"] == values.get("topic"):
        yield "dead_letter_topic is the stream itself", "write another queue or stream"
