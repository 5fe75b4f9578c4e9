"""AMQP 1.0 without sockets: bytes in, typed events out, for both peers.

`Connection` is the engine; `types`, `codec`, `performative` and `section` are the type system below it.
"""

from isthmus.amqp.amqp_session import AmqpSession
from isthmus.amqp.codec import CodecError
from isthmus.amqp.connection import Connection
from isthmus.amqp.event import (
    Closed,
    CreditChanged,
    Disposed,
    Event,
    LinkAttached,
    LinkAttaching,
    LinkDetached,
    Opened,
    SaslInit,
    SaslRefused,
    SentSettled,
    SessionBegun,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.link import Link, Role
from isthmus.amqp.performative import Error

BATCH_FORMAT = 0x80013700
"""Message format of a batch envelope: data sections that each hold an encoded message."""

__all__ = [
    "BATCH_FORMAT",
    "AmqpSession",
    "Closed",
    "CodecError",
    "Connection",
    "CreditChanged",
    "Disposed",
    "Error",
    "Event",
    "Link",
    "LinkAttached",
    "LinkAttaching",
    "LinkDetached",
    "Opened",
    "Role",
    "SaslInit",
    "SaslRefused",
    "SentSettled",
    "SessionBegun",
    "SessionEnded",
    "TransferParts",
    "Transfers",
]
