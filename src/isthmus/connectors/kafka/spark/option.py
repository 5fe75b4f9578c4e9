"""The options of the data source `isthmus_kafka`.

What it is: the options of a read and a write of plain Spark, and their parsing. What it is not: the options of routes
(`isthmus.connectors.kafka.option`), which share those that reach the cluster.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. Options that Spark itself adds are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.connectors.kafka.option import ADMINISTRATION, ClusterOptions, read_as
from isthmus.connectors.servicebus.option import SPARK_OPTIONS
from isthmus.connectors.spec import Kind, Setting, Spec

__all__ = ["READ", "WRITE", "ReadOptions", "WriteOptions", "read_options", "write_options"]

_TOPIC = Setting(name="topic", kind=Kind.TEXT, required=True, example="orders", description="The topic.")

READ = Spec(
    "isthmus_kafka read",
    "Options of a read.",
    (
        *ADMINISTRATION.settings,
        _TOPIC,
        Setting(
            name="start",
            kind=Kind.CHOICE,
            choices=("earliest", "latest"),
            default="earliest",
            description="The start of a streaming query without checkpoint. A batch read begins with the first record.",
        ),
        Setting(
            name="max_records",
            kind=Kind.INTEGER,
            default=100_000,
            minimum=1,
            description="Records in one micro-batch at most.",
        ),
        Setting(
            name="missing",
            kind=Kind.CHOICE,
            choices=("fail", "skip"),
            default="fail",
            description="Reaction of a query whose next records the topic's retention has removed, or whose topic was created "
            "again: it fails, or continues with those that exist.",
        ),
        Setting(
            name="group",
            kind=Kind.TEXT,
            default="",
            description="Consumer group to which a streaming query commits the offsets that Spark has committed, so that Kafka's tools show its "
            "progress, one batch late. The query itself uses its checkpoint.",
        ),
    ),
)

WRITE = Spec(
    "isthmus_kafka write",
    "Options of a write.",
    (
        *ADMINISTRATION.settings,
        _TOPIC,
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=120.0,
            minimum=1,
            maximum=86_400,
            description="How long a record may wait for its acknowledgement before the write fails.",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(ClusterOptions):
    """Options of a read."""

    topic: str
    start: str
    max_records: int
    missing: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(ClusterOptions):
    """Options of a write."""

    topic: str
    timeout_seconds: float


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(READ, ReadOptions, options, ignore=SPARK_OPTIONS)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(WRITE, WriteOptions, options, ignore=SPARK_OPTIONS)
