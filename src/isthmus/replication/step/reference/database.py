"""Reference data from a database, by SQLAlchemy.

What it is: one query, with a new connection each time, so that a rotated password is used from the next query on. What it
is not: the schedule (`repeated`).

Invariants:
    I1. No error contains the URL, which contains the password.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.connectors.secret import resolve, scrub
from isthmus.extra import require
from isthmus.replication.step.reference.value import Reference, json_value, text_of
from isthmus.topology.file.reference import SecretReference

__all__ = ["DatabaseQuery"]


class DatabaseQuery:
    r"""Reads the rows of a query.

    Args:
        database: reference to the URL.
        query: the SELECT; `:name` in it is a parameter for SQLAlchemy, write `\:name` if none is meant.
        key: the column that messages are looked up in.
        columns: the columns to add.
    """

    def __init__(self, database: str, query: str, key: str, columns: Sequence[str]) -> None:
        require("sql", "reference data of a database")
        self._reference = SecretReference.parse(database)
        self._query = query
        self._key, self._columns = key, columns

    def __call__(self) -> Reference:
        """The columns by the text of the key.

        Raises:
            ValueError: the database refuses, or lacks a column.
            SecretError: there is no such secret.
        """
        import sqlalchemy
        from sqlalchemy.pool import NullPool

        secret = resolve(self._reference)
        try:
            engine = sqlalchemy.create_engine(secret.reveal(), poolclass=NullPool)
            with engine.connect() as connection:
                result = connection.execute(sqlalchemy.text(self._query))
                names = list(result.keys())
                rows = [tuple(row) for row in result]
        except (sqlalchemy.exc.SQLAlchemyError, ImportError, ValueError) as error:
            raise ValueError(f"{self._reference}: {_first_line(error)}") from None
        except Exception as error:  # noqa: BLE001 - some drivers raise their own errors while they connect
            raise ValueError(f"{self._reference}: {type(error).__name__}: {_first_line(error)}") from None
        missing = [name for name in (self._key, *self._columns) if name not in names]
        if missing:
            raise ValueError(f"{self._reference}: the query returns no column {', '.join(missing)}")
        at = names.index(self._key)
        wanted = [names.index(name) for name in self._columns]
        return {
            text_of(row[at]): tuple(json_value(row[each]) for each in wanted) for row in rows if row[at] is not None
        }


def _first_line(error: Exception) -> str:
    """The first line of an error."""
    if isinstance(error, ModuleNotFoundError):
        return f"the driver {error.name} is not installed; install it, or name another as in postgresql+pg8000://"
    if type(error).__module__.startswith("sqlalchemy") and type(error).__name__ == "ArgumentError":
        return "the secret is no URL of a database, such as postgresql+pg8000://user:password@host/name"
    original = getattr(error, "orig", None) or error
    return scrub(str(original).splitlines()[0] if str(original) else type(original).__name__)[:300]
