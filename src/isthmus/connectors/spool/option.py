"""The options of a spool as the target of a route, and as a source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.connectors.spec import Kind, Setting, Spec, parse_options

__all__ = [
    "NAMED",
    "TIMED_BY_PUBLISHERS",
    "UNNUMBERED",
    "ReadOptions",
    "SourceOptions",
    "TargetOptions",
    "numbering_of",
    "read_options",
    "source_options",
    "target_options",
]

UNNUMBERED = frozenset({"amqp", "rabbitmq"})
"""Kinds of systems that do not number their messages. The sequence number of such a message was assigned by another system: two messages
that reached one queue from two systems may have the same."""

NAMED = frozenset({"eventgrid", "http", "queuestorage"})
"""Kinds of systems whose messages have names: numbers are made of these, and have no order."""


TIMED_BY_PUBLISHERS = frozenset({"kafka", "rabbitmq-streams"})
"""Kinds of systems whose messages have the times that their publishers give, or none: two under one number may have the same."""


def numbering_of(kind: str) -> dict[str, str]:
    """The options of a spool about the numbers of messages, for the kind of their source."""
    if kind in UNNUMBERED:
        return {"numbered": "false"}
    return {"named": "true"} if kind in NAMED else {"compares": "true"} if kind in TIMED_BY_PUBLISHERS else {}


_PATH = Setting(
    name="path",
    kind=Kind.TEXT,
    required=True,
    description="The spool's folder; where executors are on other machines, on storage that all of them share.",
    example="/srv/lake/flights/_isthmus/spool",
)
TARGET = Spec(
    "spool write",
    "Writes a route's messages into the segment files of a spool.",
    (
        _PATH,
        Setting(
            name="source",
            kind=Kind.TEXT,
            required=True,
            description="Alias and entity that the route reads; names the messages' source.",
            example="ewr/flights",
        ),
        Setting(
            name="numbered",
            kind=Kind.BOOLEAN,
            default=True,
            description="Whether the source itself numbers its messages: one that is delivered again is recognised by its number, and "
            "kept once.",
        ),
        Setting(
            name="named",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether these numbers are made of names, and have no order.",
        ),
        Setting(
            name="compares",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether a message is told from another one under its number by what it holds, since its time may be the same.",
        ),
        Setting(
            name="made",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether the spool has been made: one that is missing is not made again, since its file system may not be mounted.",
        ),
        Setting(
            name="segment_bytes",
            kind=Kind.INTEGER,
            default=64 << 20,
            minimum=4096,
            description="Maximum size of a segment.",
            example="67108864",
        ),
        Setting(
            name="segment_seconds",
            kind=Kind.INTEGER,
            default=600,
            minimum=1,
            description="Maximum age of a segment.",
            example="600",
        ),
    ),
)
SOURCE = Spec(
    "spool read by a route",
    "Reads the messages of a spool, each until the route has settled it.",
    (
        _PATH,
        Setting(
            name="follows",
            kind=Kind.TEXT,
            default="",
            description="Folder of another spool: a spool without messages reads from there which namespace its messages are from.",
            example="/srv/spools/flights/in",
        ),
    ),
)
READ = Spec(
    "isthmus_spool read",
    "Reads the messages of a spool.",
    (
        _PATH,
        Setting(
            name="rows",
            kind=Kind.CHOICE,
            choices=("message", "archive", "timed"),
            default="message",
            description="`message`: encoded messages; `archive`: the columns of an archive; `timed`: encoded messages with their times, for "
            "steps with windows.",
            example="archive",
        ),
        Setting(
            name="batch_bytes",
            kind=Kind.INTEGER,
            default=256 << 20,
            minimum=1,
            description="Approximate size of a micro-batch at most.",
            example="268435456",
        ),
        Setting(
            name="part_bytes",
            kind=Kind.INTEGER,
            default=64 << 20,
            minimum=1,
            description="Approximate number of bytes per task.",
            example="67108864",
        ),
        Setting(
            name="releases",
            kind=Kind.BOOLEAN,
            default=False,
            description="Whether segments are deleted once Spark has committed the batches that read them: for the one query that the spool "
            "is for.",
        ),
        Setting(
            name="window_ms",
            kind=Kind.INTEGER,
            default=60_000,
            minimum=1,
            description="With `timed`: the window of the step; after so long without messages, time follows the wall clock.",
            example="60000",
        ),
        Setting(
            name="slack_ms",
            kind=Kind.INTEGER,
            default=60_000,
            minimum=1,
            description="With `timed`: how much later than others a message may arrive and still count at its own time.",
            example="60000",
        ),
        Setting(
            name="past",
            kind=Kind.TEXT,
            default="",
            description="With `timed`: a spool's identity and the first record of it that is read, whatever the checkpoint says: those before "
            "were sent without the step.",
            example="2b1fa5d4 1200",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A spool that a route writes; see `TARGET`."""

    path: Path
    source: str
    numbered: bool = True
    named: bool = False
    compares: bool = False
    made: bool = False
    segment_bytes: int
    segment_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """A spool that a route reads; see `SOURCE`."""

    path: Path
    follows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A spool that a query reads; see `READ`."""

    path: Path
    rows: str
    batch_bytes: int
    part_bytes: int
    releases: bool = False
    window_ms: int = 60_000
    slack_ms: int = 60_000
    past: str = ""


def target_options(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(TARGET, options)
    return TargetOptions(**values | {"path": Path(values["path"])})


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(SOURCE, options)
    return SourceOptions(**values | {"path": Path(values["path"])})


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(READ, options)
    return ReadOptions(**values | {"path": Path(values["path"])})
