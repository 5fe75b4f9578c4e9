"""What a spool takes as the target of a route, and as a source of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isthmus.connectors.spec import Kind, Setting, Spec, parse_options

__all__ = ["ReadOptions", "TargetOptions", "read_options", "target_options"]

_PATH = Setting(
    name="path",
    kind=Kind.TEXT,
    required=True,
    description="The spool's folder; where executors are elsewhere, on storage that all of them share.",
    example="/srv/lake/flights/_isthmus/spool",
)
TARGET = Spec(
    "spool write",
    "A route's messages into the segment files of a spool.",
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
            name="segment_bytes",
            kind=Kind.INTEGER,
            default=64 << 20,
            minimum=4096,
            description="A segment that is longer is followed by another one.",
            example="67108864",
        ),
        Setting(
            name="segment_seconds",
            kind=Kind.INTEGER,
            default=600,
            minimum=1,
            description="So is one that is older.",
            example="600",
        ),
    ),
)
READ = Spec(
    "isthmus_spool read",
    "The messages of a spool.",
    (
        _PATH,
        Setting(
            name="rows",
            kind=Kind.CHOICE,
            choices=("message", "archive"),
            default="message",
            description="`message`: encoded messages; `archive`: the columns of an archive.",
            example="archive",
        ),
        Setting(
            name="batch_bytes",
            kind=Kind.INTEGER,
            default=256 << 20,
            minimum=1,
            description="About how many bytes a micro-batch has at most.",
            example="268435456",
        ),
        Setting(
            name="part_bytes",
            kind=Kind.INTEGER,
            default=64 << 20,
            minimum=1,
            description="About how many of them one task reads.",
            example="67108864",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A spool that a route writes; see `TARGET`."""

    path: Path
    source: str
    segment_bytes: int
    segment_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A spool that a query reads; see `READ`."""

    path: Path
    rows: str
    batch_bytes: int
    part_bytes: int


def target_options(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is of no use.
    """
    values = parse_options(TARGET, options)
    return TargetOptions(**values | {"path": Path(values["path"])})


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a read.

    Raises:
        ConfigError: an option is of no use.
    """
    values = parse_options(READ, options)
    return ReadOptions(**values | {"path": Path(values["path"])})
