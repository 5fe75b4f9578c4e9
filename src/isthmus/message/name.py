"""The names of annotations and application properties that isthmus reads and writes.

Annotations: OASIS AMQP 1.0 part 3.2 and Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide".
Properties of provenance: docs/explanation/guarantees.md.
"""

from __future__ import annotations

__all__ = [
    "BROKER_ANNOTATIONS",
    "CANARY",
    "DEAD_LETTER_DESCRIPTION",
    "DEAD_LETTER_REASON",
    "DEAD_LETTER_SOURCE",
    "DIGEST",
    "ENQUEUED_TIME",
    "ENQUEUE_SEQUENCE",
    "FIRST_ENQUEUED_TIME",
    "HOP_PROPERTIES",
    "LOCK_TOKEN",
    "MESSAGE_ID",
    "MOVED",
    "NAMESPACE",
    "NAMESPACE_ID",
    "OFFSET",
    "ORIGIN",
    "OWN_PROPERTIES",
    "PARTITION_KEY",
    "RESENT",
    "RESTORES",
    "RULE_NAME",
    "SCHEDULED_TIME",
    "SEQUENCE",
    "SEQUENCE_NUMBER",
    "TIME",
    "WHY_DESCRIPTION",
    "WHY_REASON",
    "WHY_ROUTE",
    "WHY_SOURCE",
]

SEQUENCE_NUMBER = "x-opt-sequence-number"
ENQUEUE_SEQUENCE = "x-opt-enqueue-sequence-number"
ENQUEUED_TIME = "x-opt-enqueued-time"
LOCK_TOKEN = "x-opt-lock-token"
SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"

FIRST_ENQUEUED_TIME = "x-opt-first-enqueued-time"
"""On dead letters that a namespace of isthmus forwarded: when the message was enqueued where it was dead-lettered."""

BROKER_ANNOTATIONS = frozenset(
    {
        SEQUENCE_NUMBER,
        ENQUEUE_SEQUENCE,
        ENQUEUED_TIME,
        LOCK_TOKEN,
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-offset",
        DEAD_LETTER_SOURCE,
        FIRST_ENQUEUED_TIME,
    }
)
"""Annotations that a broker sets on its own copy of a message; every other annotation is the sender's."""

NAMESPACE_ID = "isthmus:namespace-id"
"""Property of the open frame by which a namespace of isthmus gives its identity (OASIS AMQP 1.0, 2.7.1)."""

RULE_NAME = "RuleName"
DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"

ORIGIN = "repl-origin"
NAMESPACE = "repl-namespace"
SEQUENCE = "repl-sequence"
OFFSET = "repl-offset"
TIME = "repl-enqueued-time"
DIGEST = "repl-digest"
MESSAGE_ID = "repl-message-id"

WHY_REASON = "repl-dead-letter-reason"
WHY_DESCRIPTION = "repl-dead-letter-description"
WHY_SOURCE = "repl-dead-letter-source"
"""Why and where the original of a copy was dead-lettered (`CopyPolicy.keeps_dead_letter`); the sender's for later routes."""

WHY_ROUTE = "repl-dead-letter-route"
"""On a message that a step diverted, besides why and where: the name of its route."""

RESENT = "repl-resent"
"""On a dead letter of a replication subscription that was sent again: the sequence number under which it entered before. On a copy that
`isthmus redrive` has sent: alias/entity/sequence number of the message at the route's source. Routes treat it as a
property of the publisher, and keep it on the copies."""

MOVED = "repl-moved"
"""On a message that a pair moved: 32 hexadecimal digits of its former position, by which the member that it is moved to
drops a second copy; that member does not keep it."""

RESTORES = "isthmus:restore"
"""The capability of a link on which messages are put back into a dead-letter queue, with their dead-letter reason and description."""

CANARY = "isthmus-canary"
"""On a route's own heartbeat messages: the route's name."""

HOP_PROPERTIES = (ORIGIN, NAMESPACE, SEQUENCE, OFFSET, TIME)
"""Properties with one value per hop, joined by ";", in the order in which they are written."""

OWN_PROPERTIES = frozenset((*HOP_PROPERTIES, DIGEST, MESSAGE_ID))
"""All application properties of provenance; a name that begins with `repl-` and is none of these is the sender's."""
