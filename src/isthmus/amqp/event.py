"""What `Connection.receive` reports: one small class per thing that happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.amqp.amqp_session import AmqpSession
    from isthmus.amqp.link import Link
    from isthmus.amqp.performative import Error

__all__ = [
    "Closed",
    "CreditChanged",
    "Disposed",
    "Event",
    "LinkAttached",
    "LinkAttaching",
    "LinkDetached",
    "Opened",
    "SaslInit",
    "SaslRefused",
    "SentSettled",
    "SessionBegun",
    "SessionEnded",
    "TransferParts",
    "Transfers",
]


@dataclass(slots=True)
class SaslInit:
    """Server: the client chose a mechanism; answer with `Connection.sasl_outcome`."""

    mechanism: str
    response: bytes | None
    hostname: str | None


@dataclass(slots=True)
class SaslRefused:
    """Client: the server offers no mechanism of ours, or refused the credential."""

    reason: str


@dataclass(slots=True)
class Opened:
    """The peer's open arrived; on the server side ours has been queued as the answer."""

    container_id: str
    hostname: str | None
    max_frame_size_bytes: int
    properties: dict[Any, Any] | None


@dataclass(slots=True)
class SessionBegun:
    """A session is open; on the server side its begin has been answered."""

    amqp_session: AmqpSession


@dataclass(slots=True)
class LinkAttaching:
    """Server: the peer wants a link; `accept` or `refuse` it, now or later."""

    link: Link


@dataclass(slots=True)
class LinkAttached:
    """The peer answered our attach. A null terminus means that a refusal (LinkDetached) follows."""

    link: Link


@dataclass(slots=True)
class Transfers:
    """A run of whole deliveries of one link with consecutive delivery ids, in order.

    Attributes:
        link: the link, whose credit and delivery count are already updated.
        first_delivery_id: id of the first; the others follow, modulo 2^32.
        tags: delivery tags, one a delivery.
        payloads: encoded messages, one a delivery.
        message_format: of all of them; 0x80013700 marks batch envelopes.
        settled: whether the sender settled them.
        state: delivery state sent along, e.g. TransactionalState; such deliveries come in runs of one, and in a run of none where
            they came behind the end of their link, or ended it, and were dropped.
    """

    link: Link
    first_delivery_id: int
    tags: list[bytes]
    payloads: list[bytes]
    message_format: int
    settled: bool
    state: Any


@dataclass(slots=True)
class TransferParts:
    """Parts of a message that is too large to be reported whole, in order; see `Link.parts_above_bytes`.

    Attributes:
        link: the link; its credit and delivery count are updated with the last part.
        delivery_id: the delivery's.
        parts: pieces of the encoded message.
        settled: whether the sender settled it; holds with the last part.
        state: delivery state sent along; likewise.
        is_last: whether the message is whole now.
        aborted: whether its sender aborted it; the parts received so far are to be discarded.
    """

    link: Link
    delivery_id: int
    parts: list[bytes]
    settled: bool
    state: Any
    is_last: bool
    aborted: bool


@dataclass(slots=True)
class CreditChanged:
    """A flow arrived for the link, its session's window opened again, or a delivery that had used credit was aborted."""

    link: Link
    echo: bool


@dataclass(slots=True)
class Disposed:
    """The peer, as receiver, disposed of deliveries first to last that we sent on `link`. A server is told so also where it has ended the
    link itself.
    """

    link: Link
    first: int
    last: int
    state: Any
    settled: bool


@dataclass(slots=True)
class SentSettled:
    """The peer, as sender, sent the state of deliveries first to last that we received on this session."""

    amqp_session: AmqpSession
    first: int
    last: int
    state: Any
    settled: bool


@dataclass(slots=True)
class LinkDetached:
    """The peer detached (and is answered as `Connection.answers_at_once` says), answered our detach, or broke a limit of the link."""

    link: Link
    error: Error | None
    closed: bool


@dataclass(slots=True)
class SessionEnded:
    """The peer ended the session, answered our end, or violated the protocol in it; its links are gone."""

    amqp_session: AmqpSession
    error: Error | None


@dataclass(slots=True)
class Closed:
    """The connection is over: write what `take` returns, then close the socket.

    Attributes:
        error: what the peer said or what was wrong with its bytes; None for an orderly close.
        by_peer: whether the peer closed (False: a fault or time-out found here).
    """

    error: Error | None
    by_peer: bool


Event = (
    SaslInit
    | SaslRefused
    | Opened
    | SessionBegun
    | LinkAttaching
    | LinkAttached
    | TransferParts
    | Transfers
    | CreditChanged
    | Disposed
    | SentSettled
    | LinkDetached
    | SessionEnded
    | Closed
)
