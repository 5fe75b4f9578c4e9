"""The entities of a namespace: queues, topics, subscriptions, rules; pure, over a `Journal`.

What it is: the semantics of Service Bus entities without sockets, threads or clocks of its own. The input is bytes of
messages, the output bytes ready for the wire; storage is behind `Journal`, time behind `isthmus.clock.Clock`.
What it is not: AMQP links, tokens, HTTP (the broker), nor the store (`isthmus.store`).
"""

from __future__ import annotations

from isthmus.entities.catalog.description import (
    DEFAULT_RULE_NAME,
    INFINITE_MS,
    AuthorizationRule,
    CorrelationFilter,
    DateTime,
    Description,
    Duration,
    EntityStatus,
    FalseFilter,
    Filter,
    Parameter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.engine import Commit, Engine
from isthmus.entities.error import (
    InvalidMessageError,
    SessionRequiredError,
    TransactionRolledBackError,
    TransactionTimeoutError,
    UnknownTransactionError,
)
from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.fragment.partitions import AnyPartitioned, AnyPartitionedQueue
from isthmus.entities.fragment.queue import PartitionedQueue, PartitionedQueueBase
from isthmus.entities.fragment.session import PartitionedSessionQueue
from isthmus.entities.fragment.store import FragmentStore, FragmentStores
from isthmus.entities.fragment.topic import PartitionedTopic
from isthmus.entities.fragment.transfer import PartitionedTransfer
from isthmus.entities.queue.lock import Acquired
from isthmus.entities.queue.queue import Queue
from isthmus.entities.record.copy import Copy
from isthmus.entities.runtime import Runtime
from isthmus.entities.session.hold import Hold
from isthmus.entities.session.queue import SessionQueue
from isthmus.entities.storage.blob import Blob, Blobs, Large, Payload
from isthmus.entities.storage.blob_file import BlobFiles, BlobReader, BlobWriter
from isthmus.entities.storage.journal import Batch, Journal
from isthmus.entities.topic.topic import Topic
from isthmus.entities.transaction.transaction import Transaction

__all__ = [
    "DEFAULT_RULE_NAME",
    "INFINITE_MS",
    "Acquired",
    "AnyPartitioned",
    "AnyPartitionedQueue",
    "Copy",
    "AuthorizationRule",
    "Batch",
    "Blob",
    "BlobFiles",
    "BlobReader",
    "BlobWriter",
    "Blobs",
    "Commit",
    "CorrelationFilter",
    "DateTime",
    "Description",
    "Duration",
    "Engine",
    "EntityStatus",
    "FalseFilter",
    "Filter",
    "FragmentStore",
    "FragmentStores",
    "Hold",
    "InvalidMessageError",
    "Journal",
    "Large",
    "Limits",
    "Parameter",
    "Partitioned",
    "PartitionedQueue",
    "PartitionedQueueBase",
    "PartitionedSessionQueue",
    "PartitionedTopic",
    "PartitionedTransfer",
    "Payload",
    "Queue",
    "QueueDescription",
    "RuleDescription",
    "Runtime",
    "SessionQueue",
    "SessionRequiredError",
    "SqlAction",
    "SqlFilter",
    "SubscriptionDescription",
    "Topic",
    "TopicDescription",
    "Transaction",
    "TransactionRolledBackError",
    "TransactionTimeoutError",
    "TrueFilter",
    "UnknownTransactionError",
]
