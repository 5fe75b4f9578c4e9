"""The federation as a model.

What it is: frozen values for the declarations of the federation file (namespaces, tasks) and for the routes of tasks.
What it is not: their reading, checking or planning. Each pattern's module declares its tasks.
A little over 400 lines: the values refer to each other.

Invariants:
    I1. Nothing here contains a secret; a namespace has a reference or an identity.
    I2. Everything pickles: routes are sent to Spark's driver and workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.provenance import HOP_BUDGET
from isthmus.topology.file.document import Place
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.file.setting import Kind
from isthmus.topology.identity import IdentityReference
from isthmus.topology.kind import KINDS, SERVICE_BUS
from isthmus.topology.ledger import LedgerOptions
from isthmus.topology.pair.declaration import Pair
from isthmus.topology.spark import SparkSettings
from isthmus.topology.step import StepDeclaration, anchored
from isthmus.topology.step.divert import DivertTo

__all__ = [
    "TABLE",
    "Endpoint",
    "Federation",
    "Flow",
    "LogOptions",
    "NamespaceRef",
    "PlainOptions",
    "Route",
    "RouteOptions",
    "TableOptions",
    "Task",
]

TABLE = "table:"
"""Replaces the alias of an end that is a table and in no namespace; no alias contains a colon."""


@dataclass(frozen=True, slots=True)
class NamespaceRef:
    """The address of one namespace: a connection string behind a reference, or a host with an identity.

    Attributes:
        alias: its name in this federation; part of message identities, so it must not change after messages have moved.
        connection: reference to the connection string, or None with host.
        host: `name.servicebus.windows.net[:port]`, or empty with connection.
        identity: the Azure identity for the host, as `IdentityReference` writes it, e.g. `default`; empty with connection.
        ca_file: PEM file of the authority that signed the namespace's certificate; empty for the system's own.
        transport_type: `amqp`, or `websockets`.
        kind: the name of its connector.
        settings: for a kind other than Service Bus: its settings as text, including references; the other attributes are empty then.
        place: its position in the file.
    """

    alias: str
    connection: SecretReference | None = None
    host: str = ""
    identity: str = ""
    ca_file: str = ""
    transport_type: str = "amqp"
    kind: str = "servicebus"
    settings: tuple[tuple[str, str], ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)

    def options(self) -> dict[str, str]:
        """The options with which a connector reaches it; references, never secrets."""
        if self.kind != SERVICE_BUS.name:
            kind = KINDS[self.kind]
            return {kind.option(name): value for name, value in self.settings}
        options = (
            {"connection": str(self.connection)} if self.connection else {"host": self.host, "identity": self.identity}
        )
        if self.transport_type != "amqp":
            options["transport_type"] = self.transport_type
        return options | ({"ca_file": self.ca_file} if self.ca_file else {})

    def anchored(self, directory: Path) -> NamespaceRef:
        """The same with relative file paths resolved against `directory`."""
        return replace(
            self,
            connection=self.connection.anchored(directory) if self.connection else None,
            identity=str(IdentityReference.parse(self.identity).anchored(directory)) if self.identity else "",
            ca_file=str(directory / self.ca_file) if self.ca_file else "",
            settings=tuple((name, self._anchored(name, value, directory)) for name, value in self.settings),
        )

    @property
    def is_log(self) -> bool:
        """Whether its messages stay after they are settled, in topics with partitions."""
        return KINDS[self.kind].is_log

    @property
    def is_plain(self) -> bool:
        """Whether its entities are queues without rules and claims, e.g. those of RabbitMQ."""
        return KINDS[self.kind].is_plain

    @property
    def keeps_rejected(self) -> bool:
        """Whether a message can be set aside at its queues without a configured queue."""
        kind = KINDS[self.kind]
        return kind.dead_letters or dict(self.settings).get(kind.dead_letters_by, "").lower() == "true"

    @property
    def keeps_audit(self) -> bool:
        """Whether its topics can record messages for verification."""
        kind = KINDS[self.kind]
        return bool(kind.audits_by and dict(self.settings).get(kind.audits_by))

    @property
    def is_service_bus(self) -> bool:
        """Whether it has subscriptions with rules, dead-letter queues and claims."""
        return self.kind == SERVICE_BUS.name

    def _anchored(self, name: str, value: str, directory: Path) -> str:
        kind = next((each.kind for each in KINDS[self.kind].settings if each.name == name), Kind.TEXT)
        if kind is Kind.PATH and value:
            return str(directory / value)
        if name == "identity" and ";" in value:  # followed by its settings, which may be files
            return str(IdentityReference.parse(value).anchored(directory))
        return str(SecretReference.parse(value).anchored(directory)) if kind is Kind.REFERENCE and value else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A replication task that the operator declares; each pattern derives its own class.

    Attributes:
        name: the task's key in the file.
        pattern: the pattern's name.
        members: aliases of its namespaces, in the file's order.
        steps: the steps that process the messages of each of its routes, in order.
        diverts: the entities to which its steps send messages on which they fail.
        rate: the rate limit of each of its routes, in the form of `isthmus.topology.rate`; empty: no limit.
        canary_ms: how often each of its routes gets a heartbeat message; 0: never.
        ledger: the ledger of its routes; None: there is none.
        mailbox: whether its replication subscriptions forward to mailboxes.
        when_full: the action when a source fills: `alert`, `spool` or `drop`.
        session_state: the treatment of session state: `none` or `copy`.
        compression: the compression towards namespaces of isthmus: `none` or `deflate`.
        hop_budget: the largest number of successive copies of a message.
        place: its position in the file.
        places: the positions of its settings in the file.
    """

    name: str
    pattern: str
    members: tuple[str, ...]
    steps: tuple[StepDeclaration, ...] = ()
    diverts: tuple[DivertTo, ...] = ()
    rate: str = ""
    canary_ms: int = 0
    ledger: LedgerOptions | None = None
    mailbox: bool = False
    when_full: str = "alert"
    session_state: str = "none"
    compression: str = "none"
    hop_budget: int = HOP_BUDGET
    place: Place = field(default=Place(), compare=False, repr=False)
    places: Mapping[str, Place] = field(default_factory=dict, compare=False, repr=False)

    @property
    def sent_to(self) -> tuple[str, ...]:
        """Aliases of its members, and of the namespaces that its steps divert to."""
        return tuple(dict.fromkeys((*self.members, *(each.alias for each in self.diverts))))

    @property
    def claim_members(self) -> tuple[str, ...]:
        """Aliases of the namespaces in which runs claim the task."""
        return self.members

    def anchored(self, directory: Path) -> Task:
        """The same with relative file paths resolved against `directory`."""
        ledger = self.ledger.anchored(directory) if self.ledger is not None else None
        return replace(self, steps=tuple(anchored(step, directory) for step in self.steps), ledger=ledger)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An entity in a namespace, or a table.

    Attributes:
        alias: alias of the namespace; `TABLE` for a table, whose folder is the entity.
        entity: its path as on the wire, e.g. `flights` or `flights/Subscriptions/isthmus.flights.jfk`.
    """

    alias: str
    entity: str

    def __str__(self) -> str:
        return f"{self.alias}/{self.entity.lstrip('/')}" if self.is_table else f"{self.alias}/{self.entity}"

    @property
    def is_table(self) -> bool:
        """Whether it is a table."""
        return self.alias == TABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The options of a route for an end that is a log, e.g. a topic of Kafka.

    Attributes:
        group: consumer group that stores the position of the route; of a source.
        dead_letters: log for messages that are set aside; empty: such a message blocks the route; of a source.
        keys_by_partition: whether a record without key gets one with the name of its partition; of a source.
        partitioning: what decides the partition: `key`, `source`, or `single` for the first; of a target.
    """

    group: str = ""
    dead_letters: str = ""
    keys_by_partition: bool = False
    partitioning: str = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """The options of a route for an end that is neither Service Bus nor a log, e.g. a queue of RabbitMQ.

    Attributes:
        reads: whether the source is such an end.
        reads_topic: whether the source is a topic, e.g. an exchange or a multicast address.
        subscription: with a topic: the name under which the system keeps the route's messages; of a source.
        dead_letters: queue for messages that are set aside; empty: the system's default; of a source.
        writes_topic: whether the target is a topic.
    """

    reads: bool = False
    reads_topic: bool = False
    subscription: str = ""
    dead_letters: str = ""
    writes_topic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The options of a route whose target is a table.

    Attributes:
        spool: folder of the spool before the table.
        batch_seconds: interval between two writes to the table.
    """

    spool: str
    batch_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """The options with which a route moves messages.

    Attributes:
        ordering: `ordered` keeps the source's order (one partition), `session` that of each session, `strict` the source's also where
            the target refuses messages; `none` is the fastest.
        start: the messages with which a new route begins: `now`, those sent after `apply` created its source, or `existing`, also the existing ones.
        mark: the application property that prevents cycles of copies; empty if the pattern needs none.
        mark_is_number: whether its value is the number 1; otherwise the copy's MessageId.
        duplicates: how a copy that is sent again is recognised: `auto`, `origin`, `message-id` or `allow`.
        filter: the operator's own condition, already part of the broker's rule; empty for all messages.
        lock_duration_ms: LockDuration of the source, which determines when a reader renews.
        refused: the treatment of a message that its target refuses: `dead-letter` or `block`.
        policy: the differences of a copy from its original.
        log: options of a route whose source or target is a log.
        plain: options of a route whose source or target is neither a log nor Service Bus.
        steps: the steps that process its rows, each in the form of `StepDeclaration.to_text`.
        diverts: the entities to which the steps send messages on which they fail.
        rate: its rate limit, in the form of `isthmus.topology.rate`; empty: no limit.
        canary_ms: how often it gets a heartbeat message; 0: never.
        table: options of a route whose target is a table; None: it is no table.
        ledger: its ledger; None: there is none.
        feed: path of the subscription that forwards to the route's source, a mailbox; empty: the source is no mailbox.
        when_full: the action when its source fills: `alert`, `spool` or `drop`.
        session_state: the treatment of session state: `none` or `copy`.
        compression: the compression towards namespaces of isthmus: `none` or `deflate`.
        hop_budget: the largest number of successive copies of a message.
    """

    ordering: str = "ordered"
    start: str = "now"
    mark: str = ""
    mark_is_number: bool = False
    duplicates: str = "auto"
    filter: str = ""
    lock_duration_ms: int = 30_000
    refused: str = "dead-letter"
    policy: CopyPolicy = field(default=CopyPolicy())
    log: LogOptions = LogOptions()
    plain: PlainOptions = PlainOptions()
    steps: tuple[str, ...] = ()
    diverts: tuple[DivertTo, ...] = ()
    rate: str = ""
    canary_ms: int = 0
    table: TableOptions | None = None
    ledger: LedgerOptions | None = None
    feed: str = ""
    when_full: str = "alert"
    session_state: str = "none"
    compression: str = "none"
    hop_budget: int = HOP_BUDGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of a task: one source entity → one or more targets, one Spark streaming query.

    Attributes:
        name: stable name, unique in the federation, e.g. `flights.ewr.jfk`; names the checkpoint and the metrics.
        task: the task's name.
        pattern: the pattern's name.
        source: the entity from which messages are received.
        targets: the entities to which each message is sent; it is settled at the source when all have it.
        options: how messages are moved.
        claim_at: alias of the namespace in which runs claim it; empty: that of the source.
        is_claimed: whether runs claim it at all.
    """

    name: str
    task: str
    pattern: str
    source: Endpoint
    targets: tuple[Endpoint, ...]
    options: RouteOptions = RouteOptions()
    claim_at: str = ""
    is_claimed: bool = True

    @property
    def claim_alias(self) -> str:
        """Alias of the namespace in which runs claim it. A log cannot contain a claim."""
        return self.claim_at or self.source.alias

    @property
    def entered(self) -> str:
        """The queue or topic at its source's namespace that publishers sent its messages to: the topic, if its source is a mailbox."""
        return (self.options.feed or self.source.entity).partition("/Subscriptions/")[0]

    @property
    def sent_to(self) -> tuple[Endpoint, ...]:
        """Its targets, and the entities to which its steps divert messages."""
        return (*self.targets, *(Endpoint(each.alias, each.entity) for each in self.options.diverts))

    @property
    def target(self) -> Endpoint:
        """The target of a route with exactly one."""
        (target,) = self.targets
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The messages of one entity that have to arrive at another: one comparison of `isthmus verify`.

    Attributes:
        origin: the entity that publishers send to, e.g. `ewr/flights`.
        witness: the entity where messages of the origin can be read without consuming them, e.g. `ewr/flights/Subscriptions/audit`; empty
            entity: none, then `isthmus verify` uses the sequence numbers of the origin's messages, which have no gaps.
        target: the entity where copies have to be, e.g. `jfk/flights/Subscriptions/audit` or `jfk/orders`.
        routes: names of the routes between them, in the order in which a message passes them.
        filter: SQL condition of the messages that are moved; empty: all.
        origin_is_consumed: whether applications consume from the witness.
        target_is_consumed: whether applications consume from the target.
        expires_ms: the longest life of copies at the target; 0: that of their originals.
        changes: whether steps change contents.
        drops: whether steps may complete messages without passing them on, for reasons beyond `filter`.
        audit_ms: the time to live of messages at witness and target, if no application consumes them; 0: none.
        detection_ms: the history window of the target's duplicate detection by MessageId; 0: it is off.
        consumers: name of the one subscription that all consumers share, if the entities model a queue; otherwise empty.
        origin_is_recorded: whether the witness records the messages of a topic that does not store and number them itself.
        target_is_recorded: the same for the target.
        goes_alone: whether a message of this flow belongs to no other flow of the task.
        diverts: the entities to which steps send messages on which they fail.
        divert_detection_ms: the history window of duplicate detection there; 0: unknown, or none.
    """

    origin: Endpoint
    witness: Endpoint
    target: Endpoint
    routes: tuple[str, ...]
    filter: str = ""
    origin_is_consumed: bool = False
    target_is_consumed: bool = True
    expires_ms: int = 0
    changes: bool = False
    drops: bool = False
    audit_ms: int = 0
    detection_ms: int = 0
    consumers: str = ""
    origin_is_recorded: bool = False
    target_is_recorded: bool = False
    goes_alone: bool = False
    diverts: tuple[Endpoint, ...] = ()
    divert_detection_ms: int = 0


@dataclass(frozen=True, slots=True)
class Federation:
    """The declarations of one federation file.

    Attributes:
        namespaces: by alias, in the file's order.
        tasks: by name, in the file's order.
        file: the file's name as the operator gave it.
        version: version of the file's format.
        spark: settings of Spark.
        pairs: by name, in the file's order.
    """

    namespaces: Mapping[str, NamespaceRef]
    tasks: Mapping[str, Task]
    file: str = ""
    version: int = 1
    spark: SparkSettings = field(default=SparkSettings())
    pairs: Mapping[str, Pair] = field(default_factory=dict)

    def anchored(self, directory: Path) -> Federation:
        """The same with relative file paths resolved against `directory`."""
        return replace(
            self,
            namespaces={alias: each.anchored(directory) for alias, each in self.namespaces.items()},
            tasks={name: task.anchored(directory) for name, task in self.tasks.items()},
        )
