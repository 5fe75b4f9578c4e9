"""The federation as a model.

What it is: frozen values for what the federation file declares (namespaces, tasks) and what tasks compile to (routes).
What it is not: how they are read, checked or planned. Tasks of a pattern are declared by the pattern's module.
A little over 400 lines: the values refer to each other.

Invariants:
    I1. Nothing here holds a secret; a namespace has a reference or an identity.
    I2. Everything pickles: routes cross to Spark's driver and workers.
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
"""Stands for an alias at an end that is a table and in no namespace; no alias holds a colon."""


@dataclass(frozen=True, slots=True)
class NamespaceRef:
    """How to reach one namespace: by connection string behind a reference, or by host and identity.

    Attributes:
        alias: its name in this federation; part of message identities, so it stays once messages have moved.
        connection: reference to the connection string, or None with host.
        host: `name.servicebus.windows.net[:port]`, or empty with connection.
        identity: which Azure identity opens the host, as `IdentityReference` writes it, e.g. `default`; empty with connection.
        ca_file: PEM file of the authority that signed the namespace's certificate; empty for the system's own.
        transport_type: `amqp`, or `websockets`.
        kind: the connector that speaks to it.
        settings: of a kind other than Service Bus, its settings as text, references among them; nothing else is set then.
        place: where the file declares it.
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
        """The options by which a connector reaches it; references, never secrets."""
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
        """The same with relative file paths put below `directory`."""
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
        """Whether a message can be set aside at a queue of it without being told where."""
        kind = KINDS[self.kind]
        return kind.dead_letters or dict(self.settings).get(kind.dead_letters_by, "").lower() == "true"

    @property
    def keeps_audit(self) -> bool:
        """Whether a topic of it can keep what passes for verification."""
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
        if name == "identity" and ";" in value:  # with its settings behind it, which may be files
            return str(IdentityReference.parse(value).anchored(directory))
        return str(SecretReference.parse(value).anchored(directory)) if kind is Kind.REFERENCE and value else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replication that the operator declares; each pattern derives its own.

    Attributes:
        name: the task's key in the file.
        pattern: the pattern's name.
        members: aliases of the namespaces that take part, in the file's order.
        steps: what messages go through on each of its routes, in order.
        diverts: the entities that its steps send messages to on which they fail.
        rate: the most that each of its routes moves, as `isthmus.topology.rate` writes it; empty: no limit.
        canary_ms: how often each of its routes gets a heartbeat message; 0: never.
        ledger: the account of what its routes move; None: there is none.
        mailbox: whether its replication subscriptions forward to queues of their own.
        when_full: what is done when a source fills: `alert`, `spool` or `drop`.
        session_state: what becomes of the state of sessions: `none` or `copy`.
        compression: how its routes send to namespaces of isthmus: `none` or `deflate`.
        hop_budget: how many copies of copies a message may become.
        place: where the task is in the file.
        places: where its settings are in the file.
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
        """Aliases of the namespaces where runs claim the task."""
        return self.members

    def anchored(self, directory: Path) -> Task:
        """The same with relative file paths put below `directory`."""
        ledger = self.ledger.anchored(directory) if self.ledger is not None else None
        return replace(self, steps=tuple(anchored(step, directory) for step in self.steps), ledger=ledger)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An entity in a namespace, or a table.

    Attributes:
        alias: the namespace's; `TABLE` for a table, whose folder is the entity.
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
    """What a route honours at an end that is a log, e.g. a topic of Kafka.

    Attributes:
        group: consumer group that keeps how far the route has read; of a source.
        dead_letters: log that takes the messages which are set aside; empty: such a message blocks the route; of a source.
        keys_by_partition: whether a record without key gets one that names its partition; of a source.
        partitioning: what decides the partition: `key`, `source`, or `single` for the first; of a target.
    """

    group: str = ""
    dead_letters: str = ""
    keys_by_partition: bool = False
    partitioning: str = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """What a route honours at an end that is neither Service Bus nor a log, e.g. a queue of RabbitMQ.

    Attributes:
        reads: whether the source is such an end.
        reads_topic: whether the source is a topic, e.g. an exchange or a multicast address.
        subscription: with a topic: what the system keeps the route's messages under; of a source.
        dead_letters: queue that takes the messages which are set aside; empty: as the system does; of a source.
        writes_topic: whether the target is a topic.
    """

    reads: bool = False
    reads_topic: bool = False
    subscription: str = ""
    dead_letters: str = ""
    writes_topic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What a route honours whose target is a table.

    Attributes:
        spool: folder of the spool before the table.
        batch_seconds: how often messages are put into the table.
    """

    spool: str
    batch_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """What a route honours while it moves messages.

    Attributes:
        ordering: `ordered` keeps the source's order (one partition), `session` that of each session, `strict` the source's also where
            the target refuses messages; `none` is the fastest.
        start: what a new route begins with: `now`, what is sent after `apply` made what it reads, or `existing`, all that is there then, too.
        mark: the application property that stops copies from going round; empty where the pattern needs none.
        mark_is_number: whether it holds the number 1; else the copy's MessageId.
        duplicates: how a copy that is sent again is known: `auto`, `origin`, `message-id` or `allow`.
        filter: the operator's own condition, already part of the broker's rule; empty for all messages.
        lock_duration_ms: LockDuration of the source, by which a reader renews.
        refused: what becomes of a message that its target refuses for itself: `dead-letter` or `block`.
        policy: what a copy differs in from its original.
        log: of a route whose source or target is a log.
        plain: of a route whose source or target is neither a log nor Service Bus.
        steps: the steps that its rows go through, each as `StepDeclaration.to_text` writes it.
        diverts: the entities that the steps send messages to on which they fail.
        rate: the most that it moves, as `isthmus.topology.rate` writes it; empty: no limit.
        canary_ms: how often it gets a heartbeat message; 0: never.
        table: of a route whose target is a table; None: it is none.
        ledger: the account of what it moves; None: there is none.
        feed: path of the subscription that forwards to the route's source, a mailbox; empty: it is none.
        when_full: what is done when its source fills: `alert`, `spool` or `drop`.
        session_state: what becomes of the state of sessions: `none` or `copy`.
        compression: how it sends to a namespace of isthmus: `none` or `deflate`.
        hop_budget: how many copies of copies a message may become.
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
    """What a task compiles to: one source entity → one or more targets, one Spark streaming query.

    Attributes:
        name: stable name, unique in the federation, e.g. `flights.ewr.jfk`; names the checkpoint and the metrics.
        task: the task's name.
        pattern: the pattern's name.
        source: where messages are received.
        targets: where each message is sent; settled at the source when all have it.
        options: how.
        claim_at: alias of the namespace where runs claim it; empty: the source's.
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
        """Alias of the namespace where runs claim it. A log can hold no claim."""
        return self.claim_at or self.source.alias

    @property
    def entered(self) -> str:
        """The queue or topic at its source's namespace that its messages entered: the topic, where its source is a mailbox."""
        return (self.options.feed or self.source.entity).partition("/Subscriptions/")[0]

    @property
    def sent_to(self) -> tuple[Endpoint, ...]:
        """Its targets, and where its steps divert messages to."""
        return (*self.targets, *(Endpoint(each.alias, each.entity) for each in self.options.diverts))

    @property
    def target(self) -> Endpoint:
        """The only target of a route that has one."""
        (target,) = self.targets
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What entered one entity and has to be at another: what `isthmus verify` compares.

    Attributes:
        origin: the entity that publishers send to, e.g. `ewr/flights`.
        witness: where what entered can be read without consuming it, e.g. `ewr/flights/Subscriptions/audit`; empty entity:
            nowhere, then the numbers of the origin's messages tell, which have no gaps.
        target: the entity where copies have to be, e.g. `jfk/flights/Subscriptions/audit` or `jfk/orders`.
        routes: names of the routes that move them, in the order in which a message passes them.
        filter: SQL condition on what goes; empty: everything.
        origin_is_consumed: whether applications consume from the witness.
        target_is_consumed: whether applications consume from the target.
        expires_ms: copies live so long at the target at most; 0: as long as their originals.
        changes: whether steps change contents on the way.
        drops: whether steps may complete messages without passing them on, for reasons that `filter` does not tell.
        audit_ms: the time to live that witness and target give their messages, where no application consumes them; 0: none.
        detection_ms: the history window of the target's duplicate detection by MessageId; 0: it is off.
        consumers: name of the one subscription that all consumers share, where the entities model a queue; else empty.
        origin_is_recorded: whether the witness records what passes a topic that keeps and numbers nothing itself.
        target_is_recorded: the same of the target.
        goes_alone: whether a message that goes this way goes no other way of the task.
        diverts: where steps send messages instead on which they fail.
        divert_detection_ms: how long duplicate detection there remembers what came; 0: not told, or not at all.
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
    """All that one federation file declares.

    Attributes:
        namespaces: by alias, in the file's order.
        tasks: by name, in the file's order.
        file: the file's name as the operator gave it.
        version: of the file's format.
        spark: where Spark runs.
        pairs: by name, in the file's order.
    """

    namespaces: Mapping[str, NamespaceRef]
    tasks: Mapping[str, Task]
    file: str = ""
    version: int = 1
    spark: SparkSettings = field(default=SparkSettings())
    pairs: Mapping[str, Pair] = field(default_factory=dict)

    def anchored(self, directory: Path) -> Federation:
        """The same with relative file paths put below `directory`."""
        return replace(
            self,
            namespaces={alias: each.anchored(directory) for alias, each in self.namespaces.items()},
            tasks={name: task.anchored(directory) for name, task in self.tasks.items()},
        )
