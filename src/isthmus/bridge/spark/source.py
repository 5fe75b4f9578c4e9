"""The Spark data source `isthmus`: Spark's interface for reading.

What it is: `IsthmusDataSource` and its streaming reader. One query carries many routes: a micro-batch is a lease, which lasts an
hour or more, and a partition is a slot, whose reader carries some of the routes. What it is not: the reading (`isthmus.bridge.host.reader.reader`),
the batches (`outflow`), the sink (`sink`).

Which process runs what: `latestOffset` and `partitions` run in one Python process at the driver that lives as long as the
query; `read` runs in a worker, again for every lease. Objects between them are pickled.

Offsets are {"lease": n}: a queue has no position to go back to. A lease that was interrupted by a crash is repeated under the
same offset, and moves the messages that wait then.

Invariants:
    I1. A lease starts only when the control server allows it (`lease_offset`).
    I2. A schema that is not the data source's own, and a session that would hold messages back or run a task twice, are refused.
    I3. However the reader ends, its host is stopped: unsettled messages are released at their source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.bridge.route_spec import RouteSpec
from isthmus.bridge.spark.column import ddl, is_own
from isthmus.bridge.spark.lease_offset import LeaseOffset
from isthmus.bridge.spark.option import ReadOptions, shape_of
from isthmus.bridge.spark.sink import SinkMixin
from isthmus.bridge.spark.worker import (
    flush_row_bytes,
    output_file,
    refuse_speculation,
    share_interpreter,
    task_channel,
)
from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["IsthmusDataSource", "LeaseReader", "SlotPartition"]

# How long a closing reader waits for its host to release unsettled messages.
JOIN_SECONDS = 10.0


class IsthmusDataSource(SinkMixin, DataSource):
    """`format("isthmus")`."""

    @classmethod
    def name(cls) -> str:
        return "isthmus"

    def schema(self) -> str:
        return ddl(*shape_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        raise InvalidArgumentError(
            "isthmus reads streams only: write spark.readStream; format('servicebus') can browse an entity"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        shape = shape_of(self.options)
        if not is_own(schema, *shape):
            raise InvalidArgumentError(
                f"isthmus read: the schema {schema.simpleString()} is not {ddl(*shape)}; remove .schema(...) and add or change columns "
                "after load()"
            )
        return LeaseReader(ReadOptions.read(self.options))


class SlotPartition(InputPartition):
    """The input of one reader of a lease."""

    def __init__(self, lease: int, slot: int, routes: tuple[RouteSpec, ...]) -> None:
        super().__init__(slot)
        self.lease = lease
        self.slot = slot
        self.routes = routes

    def __repr__(self) -> str:
        return f"SlotPartition({self.lease}, {self.slot})"


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; runs at the driver, except `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._driver: LeaseOffset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_driver": None}

    @property
    def _offsets(self) -> LeaseOffset:
        if self._driver is None:
            self._driver = LeaseOffset(self.options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"lease": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"lease": self._offsets.after(int(start["lease"]))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._offsets.only_one()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        routes, slots = self.options.routes, self.options.slots
        return [SlotPartition(int(end["lease"]), slot, routes[slot::slots]) for slot in range(slots)]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: a lease settles its messages itself."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        refuse_speculation()
        share_interpreter()
        return _read(self.options, partition)


def _read(options: ReadOptions, partition: SlotPartition) -> Iterator[pa.RecordBatch]:
    """Rows as they arrive; returns when the lease has ended in order."""
    # Imported here, because the processes in which Spark plans import this module and need none of them.
    from isthmus.bridge.host.reader.item import LeaseName
    from isthmus.bridge.host.reader.reader import ReaderHost
    from isthmus.bridge.spark.outflow import Outflow
    from isthmus.bridge.spark.stage import open_stage

    padding_bytes = flush_row_bytes()
    channel = task_channel()
    if channel is None:
        raise InvalidArgumentError("isthmus reads in a task of Spark's only")
    stage = open_stage(options.steps, added=options.columns)
    host = ReaderHost(
        channel=channel,
        lease=LeaseName(options.query, partition.lease, partition.slot, options.slots),
        control=options.address,
        routes=partition.routes,
        lease_seconds=options.lease_seconds,
    )
    packs = options.blocks and stage is None
    out = Outflow(host, flush_ms=options.flush_ms, padding_bytes=padding_bytes, file=output_file(), packs=packs)
    host.start()
    try:
        if stage is None:
            yield from out.batches()
        else:
            yield from filter(None, map(stage.take, out.batches()))
    finally:
        host.stop("the reader was closed")
        host.join(JOIN_SECONDS)
