"""The columns of a message that a DataFrame step or a table can ask for, with their types as Spark writes them.

What it is: names as those of the data source `servicebus` (docs/reference/data-source.md). What it is not: how a message becomes a row. It imports
little, because each of the Python processes in which Spark plans a query imports it.
"""

from __future__ import annotations

__all__ = ["COLUMNS", "COLUMN_TYPES"]

_PROPERTY = (
    "struct<boolean:boolean,long:bigint,double:double,string:string,datetime:timestamp,timespan_microseconds:bigint,uuid:string,"
    "binary:binary,type:string>"
)
COLUMN_TYPES = {
    "body": "binary",
    "message_id": "string",
    "subject": "string",
    "content_type": "string",
    "correlation_id": "string",
    "session_id": "string",
    "reply_to": "string",
    "reply_to_session_id": "string",
    "to": "string",
    "partition_key": "string",
    "time_to_live_ms": "bigint",
    "enqueued_time": "timestamp",
    "sequence_number": "bigint",
    "delivery_count": "int",
    "application_properties": f"map<string,{_PROPERTY}>",
}

COLUMNS = tuple(COLUMN_TYPES)
