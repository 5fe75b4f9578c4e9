"""Attaching links: to an entity, a node, the coordinator, or not at all.

What it is: the decision about each link that a client wants. What it is not: the events of links (`link_table`), nor any link's work
(`isthmus.broker.link`).
Spec: docs/explanation/protocol.md, Links, Tokens.

Invariants:
    I1. A link is attached only to an entity that exists and for which the connection holds the right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from isthmus.amqp import Link, Role
from isthmus.amqp.performative import Coordinator as CoordinatorTarget
from isthmus.amqp.types import Symbol, ULong
from isthmus.broker.connection.authentication import Authentication
from isthmus.broker.connection.back_pressure import BackPressure
from isthmus.broker.connection.link_table import LinkTable, address_of
from isthmus.broker.connection.selection import browses, check_selection
from isthmus.broker.hub import HUB_NODE
from isthmus.broker.link.browse import BrowseSenderLink
from isthmus.broker.link.coordinator import Coordinator, Transactions
from isthmus.broker.link.handler import Need
from isthmus.broker.link.node import Answer, Requests
from isthmus.broker.link.partitioned import PartitionedReceiverLink, PartitionedSenderLink
from isthmus.broker.link.receiver_link import BATCH_BYTES, ReceiverLink
from isthmus.broker.link.request import Replies, Style
from isthmus.broker.link.sender_link import Carrier, SenderLink
from isthmus.broker.link.session_attach import SessionSenderLink, SessionWait, Wanted, wait_seconds, wanted_session
from isthmus.broker.management import MANAGEMENT_STYLE, MANAGEMENT_SUFFIX, Management
from isthmus.broker.security import cbs
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right
from isthmus.entities.port import MessageTarget, SessionLock, Sessions
from isthmus.errors import (
    InvalidArgumentError,
    IsthmusError,
    NotAllowedError,
    QuotaExceededError,
    SessionLockLostError,
    UnauthorizedError,
)
from isthmus.message import DUPLICATE_KEYS
from isthmus.message.compression import DEFLATE
from isthmus.message.name import RESTORES

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["Attachments"]

# By how much a message may exceed the limit and still be read to its end, so that it is rejected by itself.
_OVERSIZE_BYTES = 16 << 20
_TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
_MAX_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_LOCAL_TRANSACTIONS = "amqp:local-transactions"
# A declare or discharge has about 60 bytes.
_DISCHARGE_BYTES = 4096
# A token of 16 KiB and its properties, with room for one that is refused as too long: requests that are read before any
# right is known.
_CBS_REQUEST_BYTES = 64 << 10


class Client(Carrier, Protocol):
    """The connection whose links they are (`isthmus.broker.peer`)."""

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        ...

    def replies(self) -> Iterable[Replies]:
        """The links on which replies of nodes go to the client."""
        ...

    def end_by_fault(self) -> None:
        """Closes the connection because of a fault of the namespace."""
        ...


class Attachments:
    """The links of one connection.

    Args:
        namespace: that the client connected to.
        client: the connection.
        links: takes links that are attached, or wait for a session.
        authentication: gets the tokens in requests.
        access: the client's tokens and keys.
        transactions: of the connection.
        pressure: of the connection.
    """

    def __init__(
        self,
        namespace: Namespace,
        client: Client,
        links: LinkTable,
        authentication: Authentication,
        access: Access,
        transactions: Transactions,
        pressure: BackPressure,
    ) -> None:
        self._namespace = namespace
        self._client = client
        self._links = links
        self._authentication = authentication
        self._access = access
        self._transactions = transactions
        self._pressure = pressure
        self._limits = namespace.limits

    def release(self) -> None:
        """The connection has ended, and no link is attached any more: drops the references to it."""
        del self._client, self._authentication

    def attach(self, link: Link) -> None:
        """Decide about a link that the client wants.

        Raises:
            IsthmusError: refused, and why.
        """
        if isinstance(link.target, CoordinatorTarget):
            self._attach_coordinator(link)
            return
        address = address_of(link)
        if not isinstance(address, str) or not address:
            raise InvalidArgumentError("The link names no address.")
        path = _path(address)
        if path.lower() == cbs.CBS_NODE:
            self._attach_node(
                link,
                cbs.CBS_NODE,
                cbs.CBS_STYLE,
                self._authentication.answer_cbs,
                _CBS_REQUEST_BYTES,
                needs=Need.NOTHING,
            )
        elif path.lower() == HUB_NODE:
            self._attach_hub_management(link)
        elif self._namespace.hub_gate.claims(path):
            self._links.handlers[link] = self._namespace.hub_gate.attach(
                link,
                path,
                self._client,
                require=self._access.require,
                account=self._pressure.account,
                lose=self._transactions.lose,
                drop=self._links.drop,
            )
        elif path.lower().endswith(MANAGEMENT_SUFFIX):
            self._attach_management(link, path)
        elif link.role is Role.RECEIVER:
            self._access.require(path, Right.SEND)
            onward = (link.properties or {}).get(_TRANSFER_DESTINATION)
            takes_copies = onward is None and DUPLICATE_KEYS in link.desired_capabilities
            restores = takes_copies and RESTORES in link.desired_capabilities
            if restores:  # the dead-letter properties of its messages are trusted
                self._access.require(path, Right.MANAGE)
            destination: MessageTarget = (
                self._namespace.engine.sender(path, restores=restores)
                if onward is None
                else self._transfer(path, onward)
            )
            destination.check_sendable()
            limit_bytes = destination.max_message_size_bytes
            properties = {_MAX_BATCH_SIZE: ULong(BATCH_BYTES)} if limit_bytes > BATCH_BYTES else None
            takes_copies = onward is None and DUPLICATE_KEYS in link.desired_capabilities
            takes_deflated = onward is None and DEFLATE in link.desired_capabilities
            met = ((DUPLICATE_KEYS, takes_copies), (RESTORES, restores), (DEFLATE, takes_deflated))
            offered = [name for name, is_met in met if is_met] or None
            link.accept(max_message_size=limit_bytes, properties=properties, offered_capabilities=offered)
            # A message over the limit is rejected by itself; only one that is far over it detaches the client's link.
            link.max_message_size_bytes = limit_bytes + _OVERSIZE_BYTES
            kind = PartitionedReceiverLink if destination.is_partitioned else ReceiverLink
            desk = self._client.large if destination.takes_bodies else None
            receiver_link = kind(
                link,
                path,
                destination,
                self._pressure.account,
                self._transactions,
                desk,
                self._pressure.account_large,
                batch_limit=self._limits.max_messages_per_batch,
                credit=self._limits.sender_credit,
                takes_copies=takes_copies,
            )
            receiver_link.takes_deflated = takes_deflated
            if onward is not None:
                receiver_link.destinations = (_path(onward),)
            self._links.handlers[link] = receiver_link
            receiver_link.open()
        else:
            self._access.require(path, Right.LISTEN)
            self._attach_sender_link(link, path)

    def _transfer(self, path: str, onward: object) -> MessageTarget:
        """The destination of a transfer via an entity, as a link's property names it."""
        if not isinstance(onward, str) or not onward:
            raise InvalidArgumentError(f"'{_TRANSFER_DESTINATION}' names no address.")
        to = _path(onward)
        self._access.require(to, Right.SEND)
        return self._namespace.engine.via(path, to)

    def _attach_coordinator(self, link: Link) -> None:
        self._namespace.engine.check_transactions()
        # The Java SDK attaches it before it shows the first token; the operations of a transaction are checked for their rights.
        link.accept(max_message_size=_DISCHARGE_BYTES, offered_capabilities=[_LOCAL_TRANSACTIONS])
        coordinator = Coordinator(link, self._transactions, self._client.touch_awaited)
        self._links.handlers[link] = coordinator
        coordinator.open()

    def _attach_sender_link(self, link: Link, path: str) -> None:
        queue = self._namespace.engine.receiver(path)
        check_selection(link.source)
        if browses(link.source):
            queue.check_receivable()
            link.accept()
            self._links.handlers[link] = BrowseSenderLink(link, path, queue, self._client, self._transactions)
            return
        queue.check_stays()
        wanted = wanted_session(link.source)
        if queue.sessions is not None and wanted is not None:
            self._attach_session(link, path, queue.sessions, wanted)
            return
        if queue.requires_session:
            raise NotAllowedError(
                f"It is not possible for an entity that requires sessions to create a non-sessionful message receiver: '{path}'."
            )
        if wanted is not None:
            raise NotAllowedError(
                f"A sessionful message receiver cannot be created on an entity that does not require sessions: '{path}'."
            )
        queue.check_receivable()
        limit = self._limits.max_receivers_per_entity
        if self._namespace.receivers(queue) >= limit:
            raise QuotaExceededError(f"'{path}' has {limit} receivers, as many as it may have.")
        link.accept()
        kind = PartitionedSenderLink if queue.is_partitioned else SenderLink
        sender_link = kind(link, path, queue, self._client, self._transactions)
        self._links.handlers[link] = sender_link
        self._namespace.add_sender_link(sender_link)

    def _attach_session(self, link: Link, path: str, queue: Sessions, wanted: Wanted) -> None:
        """Grants a session, or waits for one; the attach is answered when there is one, or after a time-out."""

        def is_wanted() -> bool:
            """Whether the link is still open: the same read may contain its end, or that of its session."""
            if link.detached or link.amqp_session.ended or self._links.is_over:
                return False
            if not self._access.permits(path, Right.LISTEN):  # the token may have expired in the meantime
                raise UnauthorizedError("ExpiredToken: The token is expired.")
            return True

        def granted(hold: SessionLock) -> None:
            self._links.waits.pop(link, None)
            try:
                sender_link = SessionSenderLink(link, path, wanted, hold, self._client, self._transactions)
            except Exception:  # noqa: BLE001 - this may be another client's turn, which has no part in it
                hold.release()
                self._client.end_by_fault()
                return
            hold.on_lost = lambda: self._links.drop(link, SessionLockLostError(queue.path, hold.session_id))
            self._links.handlers[link] = sender_link
            self._namespace.add_sender_link(sender_link)
            self._namespace.offer(sender_link)
            self._client.touch()

        def refused(error: IsthmusError) -> None:
            self._links.waits.pop(link, None)
            self._links.refuse(link, error)
            self._client.touch()

        limit = self._limits.max_receivers_per_entity
        if queue.receiver_count >= limit:
            raise QuotaExceededError(f"'{path}' has {limit} receivers, as many as it may have.")
        if wanted.session_id is not None:
            granted(queue.open_session(wanted.session_id, self._client, link.name))
            return
        wait = SessionWait(queue, self._client, link.name, is_wanted, granted, refused)
        if not wait.try_grant():
            self._links.waits[link] = wait
            wait.timer = self._namespace.call_later(wait_seconds(link), wait.time_out)

    def _attach_management(self, link: Link, path: str) -> None:
        entity = path[: -len(MANAGEMENT_SUFFIX)]
        if not any(self._access.permits(path, right) for right in Right):
            self._access.require(path, Right.LISTEN)
        management = Management(
            self._namespace.engine,
            entity,
            lambda right: self._access.require(path, right),
            self._namespace.commits.when_durable,
            self._client,
        )
        limit_bytes = self._namespace.max_request_bytes
        self._attach_node(link, path.lower(), MANAGEMENT_STYLE, management.answer, limit_bytes, self._transactions)

    def _attach_hub_management(self, link: Link) -> None:
        # The Java SDK attaches it before any token and shows one in each request.
        management = self._namespace.hub_gate.management(self._authentication.require_any)
        self._attach_node(link, HUB_NODE, cbs.CBS_STYLE, management.answer, _CBS_REQUEST_BYTES, needs=Need.TOKEN)

    def _attach_node(
        self,
        link: Link,
        node: str,
        style: Style,
        answer: Answer,
        limit_bytes: int,
        transactions: Transactions | None = None,
        needs: Need = Need.RIGHT,
    ) -> None:
        if link.role is Role.RECEIVER:
            link.accept(max_message_size=limit_bytes)
            requests = Requests(link, node, style, answer, self._client, transactions)
            requests.needs = needs
            self._links.handlers[link] = requests
            requests.open()
        else:
            link.accept()
            replies = Replies(link, node, self._client)
            replies.needs = needs
            self._links.handlers[link] = self._links.replies[link] = replies


def _path(address: str) -> str:
    """An address without scheme and authority, in the client's spelling."""
    _, separator, rest = address.partition("://")
    path = rest.partition("/")[2] if separator else address
    return path.strip("/")
