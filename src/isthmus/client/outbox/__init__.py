"""The outbox: messages that are stored locally until their namespace accepted them.

What it is: the folder of a `DurableSender` (`store`), and a table in the application's own database (`table` for SQLite,
`table_postgresql`), into which the application adds messages within its own transaction. See docs/how-to/send-durably.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.client.outbox.store import OutboxStatus, status
    from isthmus.client.outbox.table import SqliteDelivery, SqliteOutbox, sqlite
    from isthmus.client.outbox.table_postgresql import PostgresqlDelivery, PostgresqlOutbox, postgresql

__all__ = [
    "OutboxStatus",
    "PostgresqlDelivery",
    "PostgresqlOutbox",
    "SqliteDelivery",
    "SqliteOutbox",
    "postgresql",
    "sqlite",
    "status",
]

_MODULES = {
    "OutboxStatus": "isthmus.client.outbox.store",
    "PostgresqlDelivery": "isthmus.client.outbox.table_postgresql",
    "PostgresqlOutbox": "isthmus.client.outbox.table_postgresql",
    "SqliteDelivery": "isthmus.client.outbox.table",
    "SqliteOutbox": "isthmus.client.outbox.table",
    "postgresql": "isthmus.client.outbox.table_postgresql",
    "sqlite": "isthmus.client.outbox.table",
    "status": "isthmus.client.outbox.store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
