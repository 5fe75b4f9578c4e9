"""Values of the rules language as Spark columns, and the columns of a DataFrame with a message's properties.

What it is: `Cell`, a value whose kind is known only per row, and `RuleColumns`, which finds the cells of properties in
documented columns. What it is not: operators (see `rule_operator`).

User properties are in one map column of the type `USER_PROPERTIES_TYPE`: names in the sender's spelling, values as a
struct of which one field is set. A null struct is a null property; a struct without any field set is a value of a type
that rules do not support (a list, a map), which exists and compares with nothing. The struct may have a field `type` besides,
as in the data source: if it is `amqp`, the field `binary` contains the encoding of such a value and is not read.

Within a cell, datetimes and timespans are microseconds (bigint), UUIDs their lower-case text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructType

from isthmus.errors import InvalidArgumentError
from isthmus.rules import Value
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import Kind, kind_of

__all__ = ["SYSTEM_COLUMNS", "USER_PROPERTIES_TYPE", "Cell", "RuleColumns", "either", "literal", "micros"]

USER_PROPERTIES_TYPE: Final = (
    "map<string, struct<boolean: boolean, long: bigint, double: double, string: string, datetime: timestamp, "
    "timespan_microseconds: bigint, uuid: string, binary: binary>>"
)

# Field of the struct, by kind.
_FIELDS: Final[dict[Kind, str]] = {
    Kind.BOOL: "boolean",
    Kind.LONG: "long",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.DATETIME: "datetime",
    Kind.TIMESPAN: "timespan_microseconds",
    Kind.UUID: "uuid",
    Kind.BINARY: "binary",
}

SYSTEM_COLUMNS: Final[dict[str, str]] = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
    "PartitionKey": "partition_key",
    "ViaPartitionKey": "via_partition_key",
    "TimeToLive": "time_to_live_ms",
    "ScheduledEnqueueTimeUtc": "scheduled_enqueue_time",
    "EnqueuedTimeUtc": "enqueued_time",
    "ExpiresAtUtc": "expires_at",
    "LockedUntilUtc": "locked_until",
    "SequenceNumber": "sequence_number",
    "EnqueuedSequenceNumber": "enqueued_sequence_number",
    "DeliveryCount": "delivery_count",
    "Size": "size_bytes",
    "DeadLetterSource": "dead_letter_source",
}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Part: TypeAlias = Callable[[], Column]


@dataclass(frozen=True)
class Cell:
    """A value per row.

    Attributes:
        parts: for each kind that the value may have, a column that is not null in the rows where it has it. They are
            functions, since most operators use two or three kinds of eight.
        exists: whether the property exists, null or not; None if that is not needed.
        known: whether there is a value that is not null.
        failed: true where the evaluation failed; None if it cannot.
        always: whether `known` is true in every row.
    """

    parts: Mapping[Kind, Part]
    exists: Part | None = None
    known: Part = lambda: F.lit(False)  # a column needs a running Spark: made when asked for
    failed: Column | None = None

    def get(self, kind: Kind) -> Column | None:
        """The column of one kind."""
        part = self.parts.get(kind)
        return None if part is None else part()

    def typed(self) -> Column:
        """Whether the value has a type of the language."""
        return either(*(part().isNotNull() for part in self.parts.values()))


def either(*conditions: Column) -> Column:
    """OR over any number of columns; false for none."""
    return functools.reduce(lambda left, right: left | right, conditions) if conditions else F.lit(False)


def micros(value: datetime | timedelta) -> int:
    """A time since the epoch, or a timespan, in microseconds."""
    return ((value - _EPOCH) if isinstance(value, datetime) else value) // _MICROSECOND


def literal(value: Value) -> Cell:
    """A value that is the same in every row; datetimes are aware."""
    kind = kind_of(value)
    if kind is None:
        return Cell({})
    return Cell({kind: lambda: _literal_column(value, kind)}, known=lambda: F.lit(True))


def _literal_column(value: Value, kind: Kind) -> Column:
    if isinstance(value, datetime | timedelta):
        return F.lit(micros(value)).cast("bigint")
    if kind is Kind.LONG:
        return F.lit(value).cast("bigint")
    return F.lit(str(value) if kind is Kind.UUID else value)


class RuleColumns:
    """The columns of a DataFrame that rules read.

    Args:
        user: the map of user properties, of the type `USER_PROPERTIES_TYPE`.
        system: columns of system properties by canonical name: strings, bigints for counts and numbers, timestamps for
            times, and for TimeToLive milliseconds as bigint.
        described: whether the structs of the map have a field `type`.
    """

    def __init__(self, user: Column, system: Mapping[str, Column], *, described: bool = False) -> None:
        self._user = user
        self._described = described
        self._system = dict(system)

    @classmethod
    def of(cls, frame: DataFrame, user: str = "application_properties") -> RuleColumns:
        """The properties of a DataFrame with the documented names (`SYSTEM_COLUMNS`), as far as it has them.

        Raises:
            InvalidArgumentError: the DataFrame has no map of user properties of that name.
        """
        kind = frame.schema[user].dataType if user in frame.columns else None
        if not isinstance(kind, MapType) or not isinstance(kind.valueType, StructType):
            raise InvalidArgumentError(f"the DataFrame has no column {user} of type {USER_PROPERTIES_TYPE}")
        system = {name: frame[column] for name, column in SYSTEM_COLUMNS.items() if column in frame.columns}
        return cls(frame[user], system, described="type" in kind.valueType.names)

    def user(self, name: str | Column) -> Cell:
        """A user property by lower-case name; of two that differ only in case the first one is used."""
        entry = F.get(F.filter(F.map_entries(self._user), lambda one: F.lower(one["key"]) == name), F.lit(0))
        value = entry["value"]
        return Cell(
            {kind: functools.partial(_user_part, value, kind, described=self._described) for kind in _FIELDS},
            exists=entry.isNotNull,
            known=value.isNotNull,
        )

    def sys(self, name: str) -> Cell:
        """A system property by canonical name.

        Raises:
            InvalidArgumentError: the DataFrame has no column for it.
        """
        column = self._system.get(name)
        if column is None:
            raise InvalidArgumentError(
                f"sys.{name} has no column here; the source has to deliver {SYSTEM_COLUMNS[name]}"
            )
        kind = SYSTEM_PROPERTIES[name].kind
        return Cell(
            {kind: functools.partial(_system_part, column, kind)}, exists=column.isNotNull, known=column.isNotNull
        )


def _user_part(value: Column, kind: Kind, *, described: bool) -> Column:
    found = value[_FIELDS[kind]]
    if kind is Kind.BINARY and described:
        return F.when(~value["type"].eqNullSafe(F.lit("amqp")), found)
    if kind is Kind.UUID:
        return F.lower(found)
    return F.unix_micros(found) if kind is Kind.DATETIME else found


def _system_part(column: Column, kind: Kind) -> Column:
    if kind is Kind.DATETIME:
        return F.unix_micros(column)
    if kind is Kind.TIMESPAN:
        return column.cast("bigint") * 1000
    return column.cast("bigint") if kind is Kind.LONG else column
