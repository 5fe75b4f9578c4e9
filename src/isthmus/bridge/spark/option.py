"""The options of the data source `isthmus`.

What it is: the options of `format("isthmus")`, parsed once and pickled to the workers. What it is not: the options
of a route's ends, which a connector declares.

Invariants:
    I1. Every option that is unknown or malformed is refused by name when the query is planned, all at once.
    I2. `control_token` is in no text of this package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import ConfigError, Fault
from isthmus.message.column import COLUMNS
from isthmus.topology.file.document import suggest
from isthmus.topology.file.setting import Kind, Setting, SettingError, Spec

__all__ = ["READ", "WRITE", "ReadOptions", "parse", "read_lists", "shape_of"]

# Options that Spark itself adds: load(path), start(path), queryName(name), where the query keeps its progress.
SPARK_OPTIONS = ("path", "paths", "checkpointLocation", "queryName")

READ = Spec(
    "isthmus read",
    "Options of a streaming read.",
    (
        Setting(
            name="query",
            kind=Kind.TEXT,
            description="Name of the query, by which the driver knows its leases; needed with `control`.",
            default="",
        ),
        Setting(
            name="control",
            kind=Kind.TEXT,
            description="`host:port` of the driver's control server, which says what routes to carry.",
            default="",
            example="127.0.0.1:4040",
        ),
        Setting(
            name="control_token",
            kind=Kind.TEXT,
            description="Key of the control server.",
            default="",
            secret=True,
        ),
        Setting(
            name="routes",
            kind=Kind.TEXT,
            description="JSON list of the routes to carry, where there is no `control`.",
            default="",
        ),
        Setting(
            name="slots",
            kind=Kind.INTEGER,
            description="Readers at once; each is a task and carries some of the routes.",
            default=1,
            minimum=1,
        ),
        Setting(
            name="flush_ms",
            kind=Kind.NUMBER,
            description="The least time between two flushes of Spark's buffers; three times as long where several rows wait.",
            default=1.0,
            minimum=0,
        ),
        Setting(
            name="lease_seconds",
            kind=Kind.NUMBER,
            description="A lease ends after so long, and the next one begins.",
            default=3600.0,
            minimum=0.1,
        ),
        Setting(
            name="blocks",
            kind=Kind.BOOLEAN,
            description="Whether a row may hold many messages, for a query whose rows go to the sink as they are.",
            default=False,
        ),
        Setting(
            name="steps",
            kind=Kind.TEXT,
            description="JSON list of the steps that messages go through before they enter the query.",
            default="",
        ),
        Setting(
            name="columns",
            kind=Kind.TEXT,
            description="JSON list of the columns that rows have beside the raw ones, for steps of the query.",
            default="",
        ),
    ),
)
WRITE = Spec(
    "isthmus write",
    "Each route says where its messages go; options say what is done with them before.",
    (
        Setting(
            name="columns",
            kind=Kind.TEXT,
            description="JSON list of the columns whose values are written into messages.",
            default="",
        ),
        Setting(
            name="steps",
            kind=Kind.TEXT,
            description="JSON list of the steps that messages go through when they leave the query.",
            default="",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of a read, parsed; see `READ`."""

    query: str = ""
    control: str = ""
    control_token: str = field(default="", repr=False)
    routes: tuple[RouteSpec, ...] = ()
    slots: int = 1
    flush_ms: float = 1.0
    lease_seconds: float = 3600.0
    blocks: bool = False
    steps: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @classmethod
    def read(cls, options: Mapping[str, str]) -> ReadOptions:
        """From Spark's options.

        Raises:
            ConfigError: with a fault for each option that is unknown, malformed, missing, or at odds with another.
        """
        values, faults = parse(READ, options)
        try:
            values["routes"] = _routes(values["routes"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            faults.append(Fault(f"isthmus read: routes is no JSON list of routes ({error})", "write routes=[{...}]"))
            values["routes"] = ()
        faults += read_lists(READ, values)
        made = cls(**values)
        faults += [Fault(f"isthmus read: {message}", hint) for message, hint in made._at_odds()]
        if faults:
            raise ConfigError(faults)
        return made

    @property
    def address(self) -> tuple[str, str] | None:
        """Address and key of the control server; None where there is none."""
        return (self.control, self.control_token) if self.control else None

    def _at_odds(self) -> list[tuple[str, str]]:
        found = []
        if self.control and self.routes:
            found.append(("control and routes are both given", "write one of them"))
        if not self.control and not self.routes:
            found.append(("neither control nor routes is given", "write control, control_token and query, or routes"))
        if self.control and not (self.control_token and self.query):
            found.append(("control is given without control_token or query", "write all three"))
        if len({route.name for route in self.routes}) < len(self.routes):
            found.append(("two routes have the same name", "name each differently"))
        return found


def _routes(text: str) -> tuple[RouteSpec, ...]:
    return tuple(RouteSpec.from_json(route) for route in json.loads(text)) if text else ()


def shape_of(options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Steps and columns of a read, on which its schema depends; empty where they are malformed."""
    values = parse(READ, options)[0]
    read_lists(READ, values)
    return values["steps"], values["columns"]


def read_lists(spec: Spec, values: dict[str, Any]) -> list[Fault]:
    """Parses the texts of `steps` and `columns` into lists, in place; returns the faults."""
    faults = []
    for name in ("steps", "columns"):
        try:
            found = json.loads(values[name]) if values[name] else []
            if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
                raise ValueError("no list of texts")
            unknown = [each for each in found if name == "columns" and each not in COLUMNS]
            if unknown:
                raise ValueError(f"no message has a column {unknown[0]}")
        except ValueError as error:
            faults.append(Fault(f"{spec.name}: {name} is no JSON list ({error})", f'write {name}=["..."]'))
            found = []
        values[name] = tuple(found)
    return faults


def parse(spec: Spec, options: Mapping[str, str]) -> tuple[dict[str, Any], list[Fault]]:
    """The values of options by name, with defaults for those that are not given, and the faults."""
    settings = {_folded(setting.name): setting for setting in spec.settings}
    ignored = {_folded(name) for name in SPARK_OPTIONS}
    values: dict[str, Any] = {setting.name: setting.default for setting in spec.settings}
    faults: list[Fault] = []
    for key, text in options.items():
        setting = settings.get(_folded(key))
        if setting is None:
            if _folded(key) not in ignored:
                hint = suggest(key, [one.name for one in spec.settings]) or "remove it"
                faults.append(Fault(f"{spec.name} has no option {key!r}", hint))
            continue
        try:
            values[setting.name] = setting.parse(text) if text else setting.default
        except SettingError as wrong:
            faults.append(Fault(f"{spec.name}: {wrong.message}", wrong.hint))
    return values, faults


def _folded(name: str) -> str:
    return name.lower().replace("_", "")
