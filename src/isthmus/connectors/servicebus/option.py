"""The data source's options.

What it is: the options of `option(name, value)`: each option is declared once, as a field with its default, limits and
meaning, from which come the `Spec` that parses it, the page of the reference, and the dataclass that is pickled to the
workers. What it is not: a store of secrets; `connection` is a reference that the worker resolves.

Invariants:
    I1. Every unknown, malformed or out-of-range option is refused by name before anything connects, all in one error;
        for an unknown one the nearest name is suggested.
    I2. No option contains a secret: a connection string given instead of a reference is refused without being repeated.
    I3. Options that Spark itself adds are ignored (see `SPARK_OPTIONS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault, InvalidArgumentError, IsthmusError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.identity import IdentityReference

__all__ = [
    "MODES",
    "REFUSED",
    "SPARK_OPTIONS",
    "SinkOptions",
    "SourceOptions",
    "copy_faults",
    "endpoint_faults",
    "spec_of",
]

MODES = ("raw", "decoded")
MARK_VALUES = ("message-id", "number")
DUPLICATES = ("auto", "origin", "message-id", "allow")
REFUSED = ("dead-letter", "block")

SPARK_OPTIONS = (
    # load(path), start(path), queryName(name), and the query's checkpoint location
    "path",
    "paths",
    "checkpointLocation",
    "queryName",
    # a table's properties (TableCatalog)
    "provider",
    "owner",
    "comment",
    "location",
    "collation",
    "external",
    "is_managed_location",
    "table_type",
    "serialization.format",
)
# Hints for options that were removed, or that users expect.
_GONE = {
    "settle": "remove it: a streaming read settles a batch once Spark has committed it; a task of a federation file (isthmus run) "
    "settles each message as soon as its target has it, within milliseconds, and may change it by steps"
}
_TABLE_MARK = "provider"
_TABLE_PREFIX = "option."
_KINDS = {"str": Kind.TEXT, "int": Kind.INTEGER, "float": Kind.NUMBER, "bool": Kind.BOOLEAN}
_SETTING = "setting"


def _option(description: str, default: Any, **declared: Any) -> Any:
    """Declares an option: a field whose `Setting` has the field's name, type and default."""
    return field(default=default, metadata={_SETTING: {"description": description, **declared}})


def spec_of(options: type[_Options]) -> Spec:
    """The declaration of a read's or a write's options."""
    return Spec(
        options.title,
        (options.__doc__ or "").strip(),
        tuple(
            Setting(name=each.name, default=each.default, **{"kind": _KINDS[str(each.type)], **each.metadata[_SETTING]})
            for each in fields(options)  # type: ignore[arg-type]
        ),
    )


class _Options:
    title = ""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Self:
        """Parses Spark's options, whose names are compared without case and underscores.

        A table's options apply to its reading and its writing, so that each ignores the other's.

        Raises:
            ConfigError: with a fault for each option that is unknown, malformed, missing, or at odds with another.
        """
        given = {name: value for name, value in options.items() if not name.lower().startswith(_TABLE_PREFIX)}
        other = SinkOptions if cls is SourceOptions else SourceOptions
        others = spec_of(other).names()
        elsewhere = dict.fromkeys(others, f"remove it: only the options of a {other.title} have it") | _GONE
        is_table = any(name.lower() == _TABLE_MARK for name in given)
        values = parse_options(
            spec_of(cls), given, ignore=SPARK_OPTIONS + (others if is_table else ()), elsewhere=elsewhere
        )
        made = cls(**{name: str(value) if name in _REFERENCES else value for name, value in values.items()})
        faults = [Fault(f"{cls.title}: {message}", hint) for message, hint in made._at_odds()]
        if faults:
            raise ConfigError(faults)
        return made

    def _at_odds(self) -> Iterator[tuple[str, str]]:
        """Contradictions between options: (message, hint)."""
        raise NotImplementedError


_REFERENCES = ("connection", "source_connection", "origin_connection")
_EXAMPLE = "env:NAME"
_CONNECTION = "Reference to a connection string: `env:NAME`, `file:/path#key` or `keyvault:vault/name`."
_HOST = "Namespace host, with `identity`, instead of `connection`."
_IDENTITY = (
    "`default`: azure-identity's DefaultAzureCredential. Others as in a federation file, with their settings after semicolons, e.g. "
    "`managed;client_id=…` or `client-secret;tenant=…;client_id=…;client_secret=env:NAME`."
)
_TRANSPORTS = ("amqp", "websockets")
_TRANSPORT_TYPE = "`amqp` (TCP, port 5671, without TLS 5672) or `websockets` (port 443, through the proxy of HTTPS_PROXY where one is set)."
_CA_FILE = "CA certificates to trust besides the system's."


def endpoint_faults(options: SourceOptions | SinkOptions) -> Iterator[tuple[str, str]]:
    """Faults of the endpoint's options: (message, hint)."""
    if options.connection and options.host:
        yield "connection and host are both given", "write one of them"
    elif not options.connection and not options.host:
        yield "neither connection nor host is given", f"write connection={_EXAMPLE}, or host and identity"
    try:
        IdentityReference.parse(options.identity)
    except IsthmusError as error:
        yield str(error).removeprefix("option "), "write identity=default"
    if not options.entity.strip("/"):
        yield "entity is missing", "write a queue, topic, or topic/Subscriptions/name"


def copy_faults(options: SinkOptions) -> Iterator[tuple[str, str]]:
    """Faults of the options for copies: (message, hint)."""
    if options.origin and "/" not in options.origin:
        yield "origin has no alias", "write alias/entity"
    try:
        CopyPolicy.from_text(options.policy)
    except InvalidArgumentError as error:
        yield f"policy: {error}", "leave the policy to a task of a federation file"


@dataclass(frozen=True, slots=True)
class SourceOptions(_Options):
    """Options of a read."""

    title = "servicebus read"

    connection: str = _option(_CONNECTION, "", kind=Kind.REFERENCE, secret=True, example=_EXAMPLE)
    host: str = _option(_HOST, "", kind=Kind.HOST, example="contoso.servicebus.windows.net")
    identity: str = _option(_IDENTITY, "default", example="managed")
    ca_file: str = _option(_CA_FILE, "", kind=Kind.PATH)
    transport_type: str = _option(_TRANSPORT_TYPE, "amqp", kind=Kind.CHOICE, choices=_TRANSPORTS)
    entity: str = _option("Path of queue, subscription or dead-letter queue.", "", example="orders")
    mode: str = _option("`raw` (the encoded message) or `decoded` (columns).", "raw", kind=Kind.CHOICE, choices=MODES)
    ordered: bool = _option(
        "Keep the source's order: one partition, and wait for messages that a dead reader has locked.", True
    )
    partitions: int = _option("Concurrent readers, where `ordered` is false.", 1, minimum=1)
    window: int = _option("Credit of a reader, in messages.", 16_000, minimum=1)
    lock_seconds: float = _option(
        "LockDuration of the entity, for renewing locks and for waiting for those of a dead reader; 0: derived from messages and "
        "this machine's clock.",
        0.0,
        minimum=0,
        maximum=300,
    )
    idle_seconds: float = _option("How long a micro-batch waits for its first message.", 30.0, minimum=0.1)
    look_seconds: float = _option("How long one query for waiting messages may block.", 1.0, minimum=0.01)
    look_pause_seconds: float = _option(
        "How long to wait between two peeks at an idle entity; the cloud bills each.", 0.25, minimum=0.01
    )
    batch_seconds: float = _option(
        "How long a micro-batch collects, from its first message on; at most a third of the LockDuration.",
        1.0,
        minimum=0.01,
    )
    batch_rows: int = _option("Messages of a micro-batch at most; divided among `partitions`.", 200_000, minimum=1)
    batch_bytes: int = _option("Bytes of a micro-batch at most.", 256 << 20, minimum=1)
    spool: str = _option(
        "Folder for the messages of a micro-batch until they are settled; readable by this user alone. "
        "Where driver and executors run on several machines: one that all of them share. Default: in the temporary folder.",
        "",
        kind=Kind.PATH,
    )
    from_sequence: int = _option("Batch read: the first sequence number.", 0, minimum=0)
    max_rows: int = _option("Batch read: at most so many messages; 0: all.", 0, minimum=0)

    def _at_odds(self) -> Iterator[tuple[str, str]]:
        yield from endpoint_faults(self)
        if self.ordered and self.partitions != 1:
            yield "partitions: an ordered read has one", "write ordered=false for more"


@dataclass(frozen=True, slots=True)
class SinkOptions(_Options):
    """Options of a write."""

    title = "servicebus write"

    connection: str = _option(_CONNECTION, "", kind=Kind.REFERENCE, secret=True, example=_EXAMPLE)
    host: str = _option(_HOST, "", kind=Kind.HOST, example="contoso.servicebus.windows.net")
    identity: str = _option(_IDENTITY, "default", example="managed")
    ca_file: str = _option(_CA_FILE, "", kind=Kind.PATH)
    transport_type: str = _option(_TRANSPORT_TYPE, "amqp", kind=Kind.CHOICE, choices=_TRANSPORTS)
    entity: str = _option("Path of queue or topic.", "", example="orders")
    origin: str = _option("Alias/entity to record as a hop of provenance; empty: record none.", "")
    target: str = _option(
        "Alias of the target namespace, to skip messages that have been there; empty: do not check.", ""
    )
    hop_budget: int = _option("How many hops a message may have.", HOP_BUDGET, minimum=1)
    origin_connection: str = _option(
        "With origin: reference to the source's connection string, from which the sink reads the namespace's identity.",
        "",
        kind=Kind.REFERENCE,
        secret=True,
        example=_EXAMPLE,
    )
    origin_host: str = _option("With origin: as `host`, for the source.", "", kind=Kind.HOST)
    origin_identity: str = _option("With origin: as `identity`, for the source.", "default", example="managed")
    origin_ca_file: str = _option("With origin: as `ca_file`, for the source.", "", kind=Kind.PATH)
    origin_transport_type: str = _option(
        "With origin: as `transport_type`, for the source.", "amqp", kind=Kind.CHOICE, choices=_TRANSPORTS
    )
    mark: str = _option("With origin: application property that every copy is marked with; empty: none.", "")
    mark_value: str = _option(
        "Value of the mark: `message-id` (the copy's MessageId) or `number` (1).",
        "message-id",
        kind=Kind.CHOICE,
        choices=MARK_VALUES,
    )
    duplicates: str = _option(
        "With origin: how a copy that is sent again is detected. `auto`: by its origin, where the target keeps duplicate keys. "
        "`origin`: the same, and elsewhere by a MessageId made of the origin. `message-id` and `allow`: as the entity is configured.",
        "auto",
        kind=Kind.CHOICE,
        choices=DUPLICATES,
    )
    trusts_provenance: bool = _option(
        "Whether provenance is valid although a step of the query has changed its message.", False
    )
    policy: str = _option(
        "Differences of copies from their originals, as a task of a federation file states them (JSON of a copy policy); empty: only "
        "mark, provenance and the remaining TimeToLive.",
        "",
    )
    compression: str = _option(
        "Compression towards a namespace of isthmus: `none`, or `deflate` in deflated envelopes. Other namespaces get uncompressed messages.",
        "none",
        kind=Kind.CHOICE,
        choices=("none", "deflate"),
    )
    batch_messages: int = _option(
        "Messages per envelope; 0 or 1: every message alone, as is one that fits no envelope. The messages of a refused "
        "envelope are sent again individually, after those sent meanwhile, and only those at fault are dead-lettered.",
        0,
        minimum=0,
    )
    window: int = _option(
        "Deliveries that may be in flight to the target. A message that the target refuses is sent again after those that "
        "were in flight with it; with 1 there are none.",
        8_000,
        minimum=1,
    )
    target_timeout_seconds: float = _option(
        "How long a target may be unreachable, or give no outcome, before the write fails.", 30.0, minimum=1
    )
    refused: str = _option(
        "A message that the target keeps refusing for 10 s while it accepts others: `dead-letter` at its source with the "
        "reason `RefusedByTarget` (one that is too large or malformed at once), or `block` until the target accepts it. A "
        "target that is busy, full or disabled always blocks.",
        "dead-letter",
        kind=Kind.CHOICE,
        choices=REFUSED,
    )
    source_connection: str = _option(
        "Reference to the source's connection string, to settle rows by their disposition.",
        "",
        kind=Kind.REFERENCE,
        secret=True,
        example=_EXAMPLE,
    )
    source_entity: str = _option("With source_connection: the source's path.", "")
    source_ca_file: str = _option("With source_connection: as `ca_file`, for the source.", "", kind=Kind.PATH)
    source_transport_type: str = _option(
        "With source_connection: as `transport_type`, for the source.", "amqp", kind=Kind.CHOICE, choices=_TRANSPORTS
    )

    def _at_odds(self) -> Iterator[tuple[str, str]]:
        yield from endpoint_faults(self)
        yield from copy_faults(self)
        if bool(self.source_connection) != bool(self.source_entity):
            yield "source_connection and source_entity go together", "write both or none"
