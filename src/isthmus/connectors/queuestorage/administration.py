"""The queues of an account, for `plan` and `apply`.

What it is: `isthmus.connectors.administration.Administration` for Queue Storage. Calls block.

Invariants:
    I1. Nothing connects before the first call.
    I2. An existing queue is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from isthmus.connectors.administration import AdministrationError, EntitySize, NamespaceUnreachableError
from isthmus.connectors.queuestorage.client import identity_of, open_queue, text_of
from isthmus.connectors.queuestorage.option import AccountOptions
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState, WantedState
from isthmus.transport.http_status import may_succeed_later

__all__ = ["QueueAdministration"]

TIMEOUT_SECONDS = 20.0
Result = TypeVar("Result")


class QueueAdministration:
    """The queues of one account.

    Args:
        account: the options that reach it.
    """

    def __init__(self, account: AccountOptions) -> None:
        self._account = account

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """The requested queues that exist."""
        found = []
        endpoint = ""
        for each in entities:
            if isinstance(each, PlainState):
                if self.count(each.name) is not None:
                    found.append(PlainState(name=each.name, is_topic=each.is_topic))
                endpoint = endpoint or self._ask(each.name, identity_of)
        return NamespaceState(alias=alias, endpoint=endpoint, plain=tuple(found))

    def make(self, change: Change) -> None:
        """Creates a queue."""
        match change:
            case Change(kind="queue", after=PlainState() as queue):
                self._ask(queue.name, lambda client: client.create_queue())
            case _:
                raise AdministrationError(
                    "Queue Storage", f"{change.kind} cannot be created there", "it has only queues; write a queue"
                )

    def size(self, entity: str) -> EntitySize | None:
        """Always None: the service does not report it."""
        return None

    def count(self, queue: str) -> int | None:
        """The approximate number of messages of a queue; None where it does not exist."""

        def ask(client: QueueClient) -> int | None:
            try:
                return client.get_queue_properties().approximate_message_count or 0
            except ResourceNotFoundError:
                return None

        return self._ask(queue, ask)

    def close(self) -> None:
        """Does nothing: no connection is kept open."""

    def _ask(self, queue: str, request: Callable[[QueueClient], Result]) -> Result:
        client = open_queue(self._account, queue, TIMEOUT_SECONDS, 1)
        try:
            return request(client)
        except AzureError as error:
            status = error.status_code if isinstance(error, HttpResponseError) else None
            may_pass = status is None or may_succeed_later(status)
            kind = NamespaceUnreachableError if may_pass else AdministrationError
            raise kind(identity_of(client), text_of(queue, error)) from None
        finally:
            client.close()
