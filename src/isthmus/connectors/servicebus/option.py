"""The data source's options, read once.

What it is: what `option(name, value)` may say, its defaults and checks, as two dataclasses that are pickled to the
workers. What it is not: a place for secrets; `connection` is a reference that the worker resolves.

Invariants:
    I1. An unknown value or a number out of range is refused by name before anything connects.
    I2. No option holds a secret: a connection string given in place of a reference is refused without being repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from isthmus.connectors.secret import SecretReference
from isthmus.errors import InvalidArgumentError

__all__ = ["MODES", "SETTLEMENTS", "SinkOptions", "SourceOptions"]

MODES = ("raw", "decoded")
SETTLEMENTS = ("sink", "commit")


class _Options:
    @classmethod
    def read(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options, whose names ignore case; options of other makers are passed over.

        Raises:
            InvalidArgumentError: an option is missing or its value is of no use.
        """
        given = {name.lower().replace("_", ""): value for name, value in options.items()}
        values: dict[str, Any] = {}
        for field in fields(cls):  # type: ignore[arg-type]
            text = given.get(field.name.replace("_", ""))
            if text is not None:
                values[field.name] = _convert(field.name, str(field.type), text)
        made = cls(**values)
        made._check()
        return made

    def _check(self) -> None:
        raise NotImplementedError


def _convert(name: str, kind: str, text: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        raise InvalidArgumentError(f"option '{name}': '{text}' is no number") from None
    if kind == "bool":
        if text.lower() not in {"true", "false"}:
            raise InvalidArgumentError(f"option '{name}': write true or false, not '{text}'")
        return text.lower() == "true"
    return text


def _check_place(connection: str, host: str, entity: str) -> None:
    if bool(connection) == bool(host):
        raise InvalidArgumentError(
            "write either option 'connection' (env:NAME, file:/path#key, keyvault:vault/name) or option 'host'"
        )
    if connection:
        SecretReference.parse(connection)
    if not entity.strip("/"):
        raise InvalidArgumentError("option 'entity' is missing: a queue, topic, or topic/Subscriptions/name")


def _check_range(options: Any, **least: float) -> None:
    for name, low in least.items():
        if getattr(options, name) < low:
            raise InvalidArgumentError(f"option '{name}': {getattr(options, name)} is below {low}")


@dataclass(frozen=True, slots=True)
class SourceOptions(_Options):
    """Options of a read.

    Attributes:
        connection: reference to a connection string.
        host: namespace host, with `identity`, instead of `connection`.
        identity: `default`: azure-identity's DefaultAzureCredential.
        ca_file: certificates to trust beside the system's.
        entity: path of queue, subscription or dead-letter queue.
        mode: `raw` (the encoded message) or `decoded` (columns).
        settle: `sink` (a lease: the servicebus sink of the same task settles) or `commit` (when Spark commits the batch).
        ordered: keep the source's order: one partition, and wait for messages that a dead reader still locks.
        partitions: readers at once, where `ordered` is false.
        window: messages that may be under way between source and settlement.
        window_bytes: the same in bytes, by the size of recent messages.
        lease_seconds: a lease ends after so long, give or take a tenth.
        lease_rows: or after so many messages.
        lease_bytes: or after so many bytes.
        idle_seconds: or when nothing came for so long.
        look_seconds: how long one look for waiting messages may block.
        look_pause_seconds: how long to wait between two peeks at an idle entity; the cloud bills each.
        batch_seconds: with settle=commit, how long a micro-batch collects.
        flush_ms: how old a row may get in Spark's buffers before it is pushed on.
        control: path of the socket on which the driver listens for reports and tells wishes (`RouteControl`).
        steps: names of custom steps of the query, for the error when one dropped rows.
        from_sequence: batch read: the first sequence number.
        max_rows: batch read: at most so many messages; 0: all.
    """

    connection: str = ""
    host: str = ""
    identity: str = "default"
    ca_file: str = ""
    entity: str = ""
    mode: str = "raw"
    settle: str = "sink"
    ordered: bool = True
    partitions: int = 1
    window: int = 16_000
    window_bytes: int = 64 << 20
    lease_seconds: float = 300.0
    lease_rows: int = 50_000_000
    lease_bytes: int = 50 << 30
    idle_seconds: float = 30.0
    look_seconds: float = 1.0
    look_pause_seconds: float = 0.25
    batch_seconds: float = 1.0
    flush_ms: float = 2.0
    control: str = ""
    steps: str = ""
    from_sequence: int = 0
    max_rows: int = 0

    def _check(self) -> None:
        _check_place(self.connection, self.host, self.entity)
        if self.mode not in MODES:
            raise InvalidArgumentError(f"option 'mode': write raw or decoded, not '{self.mode}'")
        if self.settle not in SETTLEMENTS:
            raise InvalidArgumentError(f"option 'settle': write sink or commit, not '{self.settle}'")
        if self.ordered and self.partitions != 1:
            raise InvalidArgumentError("option 'partitions': an ordered read has one; set ordered=false for more")
        _check_range(self, partitions=1, window=1, window_bytes=1, lease_seconds=0.1, lease_rows=1, lease_bytes=1)
        _check_range(
            self,
            idle_seconds=0.1,
            look_seconds=0.01,
            look_pause_seconds=0.01,
            batch_seconds=0.01,
            flush_ms=0,
            max_rows=0,
        )


@dataclass(frozen=True, slots=True)
class SinkOptions(_Options):
    """Options of a write.

    Attributes:
        connection: reference to a connection string.
        host: namespace host, with `identity`, instead of `connection`.
        identity: `default`: azure-identity's DefaultAzureCredential.
        ca_file: certificates to trust beside the system's.
        entity: path of queue or topic.
        origin: alias/entity to record as a hop of provenance; empty: record none.
        target: alias of the target namespace, to hold back messages that have been there; empty: do not look.
        hop_budget: how many hops a message may make.
        batch_messages: messages per envelope; 0 or 1: every message alone.
        window: messages that may be under way to the target.
        target_timeout_seconds: how long a target may be away before the query fails, and all locks are given back.
        source_connection: with settle=commit: reference to the source's connection string, for dispositions of rows.
        source_entity: with settle=commit: the source's path.
    """

    connection: str = ""
    host: str = ""
    identity: str = "default"
    ca_file: str = ""
    entity: str = ""
    origin: str = ""
    target: str = ""
    hop_budget: int = 8
    batch_messages: int = 0
    window: int = 8_000
    target_timeout_seconds: float = 30.0
    source_connection: str = ""
    source_entity: str = ""

    def _check(self) -> None:
        _check_place(self.connection, self.host, self.entity)
        if self.origin and "/" not in self.origin:
            raise InvalidArgumentError(f"option 'origin': write alias/entity, not '{self.origin}'")
        if bool(self.source_connection) != bool(self.source_entity):
            raise InvalidArgumentError("options 'source_connection' and 'source_entity' go together")
        if self.source_connection:
            SecretReference.parse(self.source_connection)
        _check_range(self, hop_budget=1, batch_messages=0, window=1, target_timeout_seconds=0)
