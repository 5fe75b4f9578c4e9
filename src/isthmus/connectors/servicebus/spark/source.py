"""The Spark data source `servicebus`: the classes that Spark calls to read.

What it is: `ServiceBusDataSource` and its readers. A streaming read is a sequence of micro-batches, each settled once Spark has
committed it (see `batch`); a batch read browses. What it is not: the options (`option`), the rows (`row`), the queries
(`offset_planner`), the sink (`sink`), the routes of a run, whose messages are settled one by one (`isthmus.bridge.spark`).

Which process runs what: `latestOffset`, `partitions` and `commit` run in one Python process at the driver that lives as
long as the query; `read` runs in a worker, again for every evaluation. Data between them is pickled, and contains no
secret.

Offsets are {"batch": n, "batches": name}: a queue has no position to return to. n counts batches, and the name is that of the
folder of the query's batches, so that a restart finds it.

Invariants:
    I1. `latestOffset` starts a batch only when a message waits, and never blocks much longer than `look_seconds`.
    I2. Nothing is settled before Spark committed the batch, and a batch that is evaluated again, in this run or the next
        one, holds the same messages.
    I3. A batch that Spark repeats stays empty if its folder is lost or its messages are settled; waiting messages are in a later batch. A
        sink that already has a batch would skip other messages under the same number.
    I4. A schema that is not the data source's own is refused when the query is planned.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.bridge.host.channel import private_directory
from isthmus.connectors.servicebus.batch.error import BatchEntityError, BatchInUseError
from isthmus.connectors.servicebus.batch.reader import read_batch
from isthmus.connectors.servicebus.batch.renewal import BatchRenewal
from isthmus.connectors.servicebus.batch.settlement import BatchSettlement
from isthmus.connectors.servicebus.batch.store import BatchStore, new_name
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.head import pages
from isthmus.connectors.servicebus.message.sequence import sequences_of
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.block import Block, batch_of
from isthmus.connectors.servicebus.spark.offset_planner import OffsetPlanner
from isthmus.connectors.servicebus.spark.row import DECODED_DDL, DECODED_SCHEMA, RAW_DDL, RAW_SCHEMA
from isthmus.connectors.servicebus.spark.sink import ServiceBusSinkMixin
from isthmus.errors import InvalidArgumentError
from isthmus.transport import Management

__all__ = ["ServiceBusDataSource"]

PEEK_PAGE = 250


class ServiceBusDataSource(ServiceBusSinkMixin, DataSource):
    """`format("servicebus")`."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> str:
        return RAW_DDL if SourceOptions.read(self.options).mode == "raw" else DECODED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BrowseReader(self._read_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - as above; Spark's name
        return BatchReader(self._read_options(schema))

    def _read_options(self, schema: StructType) -> SourceOptions:
        options = SourceOptions.read(self.options)
        own = RAW_SCHEMA if options.mode == "raw" else DECODED_SCHEMA
        if not to_arrow_schema(schema, timezone="UTC").equals(own):
            raise InvalidArgumentError(
                f"servicebus read: the schema {schema.simpleString()} does not match mode={options.mode}; remove .schema(...) and "
                "select or cast columns after load()"
            )
        return options


class BrowseReader(DataSourceReader):
    """A batch read: peeks, locks nothing, removes nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        path = options.entity.strip("/")
        left = options.max_rows or sys.maxsize
        with open_client(endpoint_of(options), path, "isthmus-browse") as client:
            management = Management(client, path)
            yield batch_of(options.mode, Block(range(0), [], []))
            for found in pages(management.peek, min(PEEK_PAGE, left), options.from_sequence):
                page = found[:left]
                yield batch_of(options.mode, Block(list(sequences_of(page)), [b""] * len(page), page))
                left -= len(page)
                if left <= 0:
                    return


class BatchPartition(InputPartition):
    """The parameters of one reader of a micro-batch."""

    def __init__(self, batch: int, number: int, through: int, folder: str) -> None:
        super().__init__(number)
        self.batch = batch
        self.number = number
        self.through = through
        self.folder = folder

    def __repr__(self) -> str:
        return f"BatchPartition({self.batch}, {self.number})"


class BatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; runs at the driver, except `read`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._driver: OffsetPlanner | None = None
        self._name = ""
        self._store: BatchStore | None = None
        self._settlement: BatchSettlement | None = None
        self._renewal: BatchRenewal | None = None
        self._planned = (0, 0)  # the batch that was planned last, and its readers

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_driver": None, "_store": None}

    @property
    def _here(self) -> OffsetPlanner:
        if self._driver is None:
            self._driver = OffsetPlanner(self.options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"batch": 0}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._here.peeked_message()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._here.prepare_available_now()

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it only when a later batch begins; `latestOffset` knows it sooner."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.options.batch_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        store = self._batches(start)
        assert self._settlement is not None
        # Spark asks for the next offset only after it has committed the batch before.
        before = int(start["batch"])
        was_read = before <= store.settled() or any(number == before for number, _ in store.listed("index"))
        self._settlement.settle_through(before)
        # The reader keeps the limits. Of a checkpoint that was set back, the batches that are settled come first, empty (I3).
        found = before + 1 if before < store.settled() else self._here.latest(before, was_read=was_read)
        return start if found == before else {"batch": found, "batches": self._name}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        store, batch = self._batches(end, repeated=int(end["batch"])), int(end["batch"])
        if store.settled() >= batch:
            return []
        if self._planned[0] != batch:
            # A batch that an earlier run has received has the readers of that run, whatever `partitions` is now: further ones would receive
            # messages that a sink which has the batch skips (I2).
            received = [reader + 1 for number, reader in store.listed("index") if number == batch]
            self._planned = batch, max(received, default=self.options.partitions)
        return [
            BatchPartition(batch, number, self._here.batch_through, str(store.folder))
            for number in range(self._planned[1])
        ]

    def _batches(self, offset: dict[str, Any], repeated: int | None = None) -> BatchStore:
        if self._store is None:
            self._name = str(offset.get("batches") or new_name())
            base = Path(self.options.spool).absolute() if self.options.spool else private_directory() / "batches"
            store = BatchStore(base / self._name)
            if not store.claim():
                raise BatchInUseError(self.options.entity.strip("/"), str(store.folder))
            path = self.options.entity.strip("/")
            # In a file, and before the entity, by which the next run knows the folder: this one may end here, or before the commit.
            if repeated is not None and not store.is_known():
                store.set_settled(repeated)
            if (other := store.entity(path)).lower() != path.lower():
                store.close()
                raise BatchEntityError(path, other, str(store.folder))
            self._store = store
            self._settlement = BatchSettlement(self.options, store)
            self._renewal = BatchRenewal(self.options, store).start()
        return self._store

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
        if self._store is not None and self._settlement is not None and self._renewal is not None:
            self._renewal.stop()
            self._settlement.close()
            self._store.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BatchPartition)
        store = BatchStore(Path(partition.folder))
        return read_batch(self.options, store, partition.batch, partition.number, partition.through)
