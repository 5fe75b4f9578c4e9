"""A queue as a source: the requests of `isthmus.connectors.pull`.

What it is: reading, deleting, renewing and releasing with the SDK, and the poison queue. What it is not: when (`pull.lock_account`).
Specification: Microsoft Learn, "Get Messages", "Update Message", "Delete Message" (Queue Storage REST API).

Invariants:
    I1. A message is in the poison queue before it is deleted, and once, even if it cannot be deleted at first.
    I2. A message that was delivered to another receiver since is reported as lost, never as an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.pull.puller import Lease, Pulled, PullError
from isthmus.connectors.queuestorage.client import (
    ServerClock,
    code_of,
    identity_of,
    is_lost,
    open_queue,
    refusal_of,
    text_of,
)
from isthmus.connectors.queuestorage.mapping import poison_text, to_message
from isthmus.connectors.queuestorage.option import SourceOptions
from isthmus.errors import IsthmusError
from isthmus.message.name import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON

__all__ = ["BATCH", "QueuePuller"]

# Azure: messages in one read at most.
BATCH = 32
_NEVER_YEAR = 9999
# Messages in the poison queue that could not be deleted.
REMEMBERED = 10_000


class QueuePuller:
    """Requests of one queue.

    Args:
        options: of the source.
    """

    batch = BATCH
    settle_batch = 1

    def __init__(self, options: SourceOptions) -> None:
        self.entity = options.entity
        self.max_deliveries = options.max_dequeue_count
        self._options = options
        self._clock = ServerClock()
        self._client: QueueClient | None = None
        self._poison: QueueClient | None = None
        self._identity = ""
        self._stored: dict[str, None] = {}  # names of messages that are in the poison queue, and may not be deleted yet

    @property
    def clock_offset_ms(self) -> int | None:
        """From the Date header of the last answer."""
        return self._clock.offset_ms

    def open(self) -> str:
        """Checks that the queue exists; returns the account.

        Raises:
            PullError: it does not exist, or cannot be reached.
        """
        self.close()
        options = self._options
        connections = options.settling + 2
        try:
            self._client = open_queue(options.account, options.entity, options.timeout_seconds, connections)
            self._poison = open_queue(options.account, options.poison_queue, options.timeout_seconds, connections)
            self._identity = identity_of(self._client)
            self.waiting()
        except IsthmusError as error:
            raise PullError(str(error), not error.retryable) from None if not isinstance(error, PullError) else error
        return self._identity

    def receive(self, count: int) -> Sequence[Pulled]:
        """The next messages; they become invisible to others.

        Raises:
            PullError: no answer, or a refusal.
        """
        client, visibility = self._queue(), self._options.visibility_seconds
        try:
            pages = client.receive_messages(
                messages_per_page=min(count, BATCH),
                visibility_timeout=visibility,
                raw_response_hook=self._clock.observe,
            ).by_page()
            found = [self._pulled(each, visibility) for each in next(pages, ())]
        except AzureError as error:
            raise self._failed(error) from None
        gone: set[str] = set()
        for each in found:
            # In the poison queue: it is redelivered because it could not be deleted.
            if each.lease.name in self._stored and self.complete([each.lease])[0]:
                self._stored.pop(each.lease.name, None)
                gone.add(each.lease.name)
        return [each for each in found if each.lease.name not in gone and each.lease.name not in self._stored]

    def _pulled(self, found: Any, visibility: int) -> Pulled:
        enqueued_ms = round(found.inserted_on.timestamp() * 1000)
        expires = found.expires_on
        lease = Lease(found.id, found.pop_receipt, visibility)
        text = found.content or ""
        try:
            message = to_message(
                text,
                self._options.encoding,
                name=f"{self._identity}/{self.entity}/{found.id}",
                message_id=found.id,
                enqueued_ms=enqueued_ms,
                expires_ms=round(expires.timestamp() * 1000)
                if expires is not None and expires.year < _NEVER_YEAR
                else 0,
            )
        except Exception as error:  # noqa: BLE001 - an unreadable message must not keep others from being read
            raw = section.encode_message(text.encode(errors="surrogatepass"), properties={"message_id": found.id})
            return Pulled(lease, raw, found.dequeue_count, enqueued_ms, str(error))
        return Pulled(lease, message, found.dequeue_count, enqueued_ms)

    def waiting(self) -> int | None:
        """The approximate number of messages of the queue, invisible ones included.

        Raises:
            PullError: no answer, or a refusal.
        """
        try:
            return self._queue().get_queue_properties(raw_response_hook=self._clock.observe).approximate_message_count
        except AzureError as error:
            raise self._failed(error) from None

    def complete(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Deletes messages."""
        return [self._ask(lambda client, each=each: client.delete_message(each.name, each.receipt)) for each in leases]

    def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Makes messages visible."""
        return [
            self._ask(lambda client, each=each: client.update_message(each.name, each.receipt, visibility_timeout=0))
            for each in leases
        ]

    def renew(self, leases: Sequence[Lease]) -> Sequence[Lease | None]:
        """Keeps messages invisible; each gets a new receipt."""
        seconds = self._options.visibility_seconds
        renewed: list[Lease | None] = []
        for each in leases:
            try:
                found = self._queue().update_message(each.name, each.receipt, visibility_timeout=seconds)
            except AzureError as error:
                if not is_lost(error):
                    raise self._failed(error) from None
                renewed.append(None)
            else:
                renewed.append(Lease(each.name, str(found.pop_receipt), seconds))
        return renewed

    def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
        """Puts a message into the poison queue, and then deletes it."""
        reason = {DEAD_LETTER_REASON: disposition.reason, DEAD_LETTER_DESCRIPTION: disposition.description}
        text = poison_text(message, reason, self._options.encoding)
        poison = self._poison
        assert poison is not None
        if lease.name not in self._stored:
            try:
                try:
                    poison.send_message(text, time_to_live=-1)
                except ResourceNotFoundError:
                    poison.create_queue()
                    poison.send_message(text, time_to_live=-1)
            except AzureError as error:
                raise PullError(text_of(self._options.poison_queue, error)) from None
            self._stored[lease.name] = None
            if len(self._stored) > REMEMBERED:
                del self._stored[next(iter(self._stored))]
        is_taken = self.complete([lease])[0]
        if is_taken:
            self._stored.pop(lease.name, None)
        return is_taken

    def interrupt(self) -> None:
        """Does nothing: a read does not wait."""

    def close(self) -> None:
        """Closes the connections."""
        for client in (self._client, self._poison):
            if client is not None:
                client.close()

    def _queue(self) -> QueueClient:
        assert self._client is not None
        return self._client

    def _ask(self, request: Any) -> bool:
        try:
            request(self._queue())
        except AzureError as error:
            if is_lost(error):
                return False
            raise self._failed(error) from None
        return True

    def _failed(self, error: AzureError) -> PullError:
        is_fatal = refusal_of(self.entity, error).kind is RefusalKind.FATAL or code_of(error) == "QueueNotFound"
        return PullError(text_of(self.entity, error), is_fatal)
