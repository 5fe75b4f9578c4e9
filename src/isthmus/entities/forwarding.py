"""The queues of a namespace that forward, and the retries of their waiting messages.

What it is: forwarding checked, set and removed as descriptions say, and the events that retry waiting messages. What it is
not: the moving (`queue.relay`), or one hop (`queue.onward`).
Spec: docs/explanation/protocol.md, Forwarding; docs/explanation/forwarding.md.

Invariants:
    I1. An error of one queue while its messages are moved does not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from isthmus.entities.catalog.catalog import parse_address
from isthmus.entities.catalog.description import INFINITE_MS, QueueDescription, SubscriptionDescription
from isthmus.entities.fragment.crossing import route_finder
from isthmus.entities.fragment.partitions import AnyPartitioned, AnyPartitionedQueue
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.onward import Onward
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.relay import forward
from isthmus.errors import InvalidArgumentError, StoreError

__all__ = ["Forwarding"]

_log = logging.getLogger(__name__)


class Forwarding:
    """The forwarding queues of one namespace.

    Args:
        find: the queue or topic that has the path now; None if there is none.
    """

    __slots__ = ("_find", "_stores")

    def __init__(self, find: Callable[[str], Intake | AnyPartitioned | None]) -> None:
        self._find = find
        # The forwarding queues, and the store of fragments of each; None is the catalog's.
        self._stores: dict[Queue, FragmentStore | None] = {}

    def check(self, description: QueueDescription | SubscriptionDescription, name: str) -> None:
        """Refuse targets that the service refuses, and put the others in the spelling in which they were created.

        Like the service this accepts an entity that forwards to itself, and one that requires sessions: messages that cannot
        be forwarded are dead-lettered on arrival.

        Args:
            description: of the entity that forwards; is changed.
            name: of the queue or topic that it is, or that it belongs to.

        Raises:
            InvalidArgumentError: a target is not a queue or topic, or does not exist.
        """
        description.forward_to = self._checked_target("ForwardTo", description.forward_to, name)
        description.forward_dead_lettered_messages_to = self._checked_target(
            "ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_messages_to, name
        )
        if description.forward_to:
            # As the service: an entity that only forwards messages must not be deleted as idle before one arrives.
            description.auto_delete_on_idle_ms = INFINITE_MS

    def _checked_target(self, setting: str, path: str | None, name: str) -> str | None:
        if not path:
            return None
        address = parse_address(path)
        if address.subscription is not None or address.suffix:
            raise InvalidArgumentError(f"{setting} is '{path}'; messages are forwarded to a queue or topic.")
        target = self._find(address.name)
        if target is None and address.name == name.lower():
            return name
        if target is None:
            raise InvalidArgumentError(f"{setting} is '{path}'; the entity to forward to does not exist.")
        return target.path

    def apply(self, queue: Queue | AnyPartitionedQueue, path: str | None) -> None:
        """Forward an entity's messages to a path from now on; None keeps them."""
        queue.forward_parts(path, partial(self._start, path) if path else self._stop)

    def stop(self, member: Intake | AnyPartitioned) -> None:
        """An entity ends: it does not forward any more."""
        member.forward_parts(None, self._stop)

    def _start(self, path: str, queue: Queue, store: FragmentStore | None) -> None:
        forward(queue, Onward(path, route_finder(queue, self._find)))
        self._stores[queue] = store

    def _stop(self, queue: Queue, store: FragmentStore | None) -> None:
        del store
        forward(queue, None)
        self._stores.pop(queue, None)

    def target_changed(self, name: str) -> None:
        """Retry messages that could not go to a queue or topic: its settings have changed."""
        for queue in self._stores:
            if queue.relay is not None and queue.relay.onward.path.lower() == name.lower():
                queue.relay.retry_refused()

    def pump(self) -> None:
        """Retry all waiting messages: a setting has changed, time has passed, or a store is up again.

        Raises:
            StoreError: the catalog's store refused.
        """
        for queue, store in list(self._stores.items()):
            try:
                if queue.relay is not None and (store is None or store.is_up):
                    queue.relay.retry()
            except StoreError:
                if store is None:
                    raise
                # Its store is down from now on.
            except Exception:  # noqa: BLE001 - nothing is half done, and the others follow
                _log.exception("messages not forwarded because of a fault, retried later: entity=%r", queue.path)
