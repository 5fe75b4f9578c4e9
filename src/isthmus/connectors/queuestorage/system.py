"""Queue Storage for the driver (`isthmus.connectors.system`).

What it is: administration, and the number of waiting messages. A queue cannot be browsed: only the 32 messages at its head can be peeked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.queuestorage.option import read_account
from isthmus.connectors.system import Peek, Waits
from isthmus.errors import EntityNotFoundError, UnsupportedError
from isthmus.extra import require

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "QueueStorageSystem"]

_WHAT = "Queue Storage"


class QueueStorageSystem:
    """The kind `queuestorage`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The queues of an account."""
        require("queuestorage", _WHAT)
        from isthmus.connectors.queuestorage.administration import QueueAdministration

        return QueueAdministration(read_account(namespace.options()))

    def identity(self, options: Mapping[str, str]) -> str:
        """The account."""
        require("queuestorage", _WHAT)
        from isthmus.connectors.queuestorage.client import identity_of, open_queue

        client = open_queue(read_account(options), "identity", 1.0, 1)
        client.close()
        return identity_of(client)

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """The account's address."""
        return [options["account_url"]] if options.get("account_url") else []

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Requests the properties of a queue."""
        if self._count(options, entity) is None:
            raise EntityNotFoundError(entity)

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The approximate number of messages of a queue."""
        return Waits(self._count(options, entity) or 0)

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Refuses: a queue cannot be browsed.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"queue '{entity}': only the 32 messages at its head can be peeked")

    def _count(self, options: Mapping[str, str], entity: str) -> int | None:
        require("queuestorage", _WHAT)
        from isthmus.connectors.queuestorage.administration import QueueAdministration

        return QueueAdministration(read_account(options)).count(entity)


SYSTEM = QueueStorageSystem()
