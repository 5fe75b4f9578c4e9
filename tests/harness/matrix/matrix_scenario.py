"""The scenarios of the fault matrix: each is one pattern, as a task of a federation file, with what is published for it.

All tasks are between the same three namespaces and the systems of streams: a Kafka broker, `hub`, a node of RabbitMQ, `log`, and a namespace of
event hubs, `events`. Messages enter at `ewr`, at `jfk` where the pattern has several
sources, and at those systems for streams; copies are at `jfk`, `lga`, `hub` and `events`. A scenario that has targets which can drop second copies is played twice: with `duplicates: origin`, and with
`duplicates: allow`, where second copies are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus.topology.model import Endpoint, Federation, Flow
from isthmus.topology.route import flows

__all__ = ["ALIASES", "FILES", "LOGS", "SCENARIOS", "Scenario", "chosen", "written"]

SOURCE, TARGET, THIRD = ALIASES = ("ewr", "jfk", "lga")
HUB, LOG, EVENTS = LOGS = ("hub", "log", "events")

# Long enough that a reader on a loaded machine renews in time, short enough that a dead one's locks expire soon.
LOCK = "lock_duration: 10s"

FILES = {
    "flight.schema.json": '{"type": "object", "required": ["number", "dest"]}',
    "airports.csv": "faa,name,lat,lon\nIAH,George Bush Intercontinental,29.98,-95.34\nORD,Chicago Ohare Intl,41.97,-87.9\n",
    "flight.key": "q83vASNFZ4mrze8BI0VniavN7wEjRWeJq83vASNFZ4k=\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One pattern under faults.

    Attributes:
        name: of the row in the matrix.
        task: name of the task and of its entities.
        settings: the task in the federation file, one setting in a line.
        sources: entities that publishers send to.
        detects: whether the target drops second copies by their origin.
        has_invalid: whether each fiftieth message is set aside at its source by the task's steps.
        fails_at: queue whose consumer dead-letters every message; what it dead-letters has to arrive at `spills_to`.
        spills_to: see `fails_at`.
        needs_spark: whether its steps work on DataFrames.
        sessions: how many sessions the messages of each publisher belong to, in turn; each keeps an order of its own. 0: none.
        has_routes: whether routes move its messages; else the namespace does.
        stream: the stream that it begins at or leads to; empty: none.
        log: the alias of its system.
    """

    name: str
    task: str
    settings: tuple[str, ...]
    sources: tuple[Endpoint, ...]
    detects: bool = True
    has_invalid: bool = False
    fails_at: Endpoint | None = None
    spills_to: Endpoint | None = None
    needs_spark: bool = False
    sessions: int = 0
    has_routes: bool = True
    stream: str = ""
    log: str = ""

    def ledger_flows(self, federation: Federation) -> list[Flow]:
        """What has to be where by the publishers' own numbers."""
        if self.fails_at is not None and self.spills_to is not None:
            return [Flow(origin=self.fails_at, witness=self.fails_at, target=self.spills_to, routes=())]
        found = flows(federation.tasks[self.task])
        condition = "valid = TRUE" if self.has_invalid else ""
        return [replace(flow, filter=condition or flow.filter, changes=False, expires_ms=0) for flow in found]


def _scenario(name: str, task: str, pattern: str, *settings: str, at: str = SOURCE, **others: object) -> Scenario:
    return Scenario(
        name=name,
        task=task,
        settings=(f"pattern: {pattern}", *settings),
        sources=tuple(Endpoint(alias, task) for alias in at.split()),
        **others,  # type: ignore[arg-type]
    )


def _twice(scenario: Scenario) -> Iterator[Scenario]:
    """With and without detection."""
    yield replace(scenario, settings=(*scenario.settings, "duplicates: origin"))
    task = f"{scenario.task}-twice"
    settings = tuple(re.sub(rf": {scenario.task}\b", f": {task}", line) for line in scenario.settings)
    yield replace(
        scenario,
        name=f"{scenario.name}, `duplicates: allow`",
        task=task,
        settings=(*settings, "duplicates: allow"),
        sources=tuple(Endpoint(each.alias, task) for each in scenario.sources),
        detects=False,
    )


AUDIT = "audit: 1d"
_STEPS = (
    "steps:",
    "  - validate: {schema: flight.schema.json}",
    "  - enrich: {from: airports.csv, on: dest = faa, columns: [name, lat, lon], prefix: dest_}",
    '  - encrypt: {key: "file:flight.key", key_id: flight}',
)
_OWN_STEPS = (
    "steps:",
    "  - python: {function: 'flight_step:need_destination', takes: message}",
    '  - sql: "SELECT upper(subject) AS subject FROM rows"',
    "  - set: \"SET checked = 'yes'\"",
)

SCENARIOS: tuple[Scenario, ...] = (
    *_twice(
        _scenario(
            "all-active", "aa", "all-active", "topic: aa", "members: [ewr, jfk, lga]", AUDIT, LOCK, at="ewr jfk lga"
        )
    ),
    *_twice(
        _scenario(
            "active-passive",
            "ap",
            "active-passive",
            "topic: ap",
            "primary: ewr",
            "secondary: jfk",
            "failover_within: 12h",
            AUDIT,
            LOCK,
        )
    ),
    _scenario(
        "spillover",
        "sp",
        "spillover",
        "queue: sp",
        "members: [ewr, jfk]",
        "deadline: 4d",
        "reasons: [NoGate]",
        "audit: 7d",
        LOCK,
        fails_at=Endpoint(SOURCE, "sp"),
        spills_to=Endpoint(TARGET, "sp"),
    ),
    *_twice(
        _scenario(
            "copy, topic to queue",
            "cq",
            "copy",
            "source: ewr",
            "topic: cq",
            "target: jfk",
            "target_queue: cq",
            AUDIT,
            LOCK,
        )
    ),
    *_twice(_scenario("move, queue to queue", "mv", "move", "source: ewr", "queue: mv", "target: jfk", LOCK)),
    *_twice(
        _scenario(
            "move of sessions",
            "ss",
            "move",
            "source: ewr",
            "queue: ss",
            "target: jfk",
            "ordering: session",
            LOCK,
            sessions=50,
        )
    ),
    _scenario(
        "all-active, sessions",
        "sa",
        "all-active",
        "topic: sa",
        "members: [ewr, jfk]",
        "ordering: session",
        "duplicates: origin",
        AUDIT,
        LOCK,
        at="ewr jfk",
        sessions=10,
    ),
    _scenario(
        "move, strict order",
        "so",
        "move",
        "source: ewr",
        "queue: so",
        "target: jfk",
        "ordering: strict",
        "duplicates: origin",
        LOCK,
    ),
    *_twice(
        _scenario(
            "consolidate, two regions to one",
            "co",
            "consolidate",
            "sources: [ewr, jfk]",
            "topic: co",
            "target: lga",
            AUDIT,
            LOCK,
            at="ewr jfk",
        )
    ),
    *_twice(
        _scenario(
            "fan-out, tree of hubs", "fo", "fan-out", "topic: fo", "hub: ewr", "members: {jfk: [lga]}", AUDIT, LOCK
        )
    ),
    *_twice(
        _scenario(
            "split, queue to three",
            "st",
            "split",
            "source: ewr",
            "queue: st",
            "first: true",
            "targets:",
            "  - {to: jfk, queue: st-low, filter: \"lane = 'low'\"}",
            "  - {to: lga, queue: st-high, filter: \"lane = 'high'\"}",
            "otherwise: {to: lga, name: rest, queue: st-rest}",
            LOCK,
        )
    ),
    _scenario(
        "stream to queue",
        "tq",
        "stream-to-queue",
        f"source: {HUB}",
        "stream: tq",
        "target: jfk",
        "queue: tq",
        "start: existing",
        at=HUB,
        stream="tq",
        log=HUB,
    ),
    _scenario(
        "queue to stream (by a topic)",
        "qt",
        "queue-to-stream",
        "source: ewr",
        "topic: qt",
        f"target: {HUB}",
        "stream: qt",
        LOCK,
        detects=False,
        stream="qt",
        log=HUB,
    ),
    _scenario(
        "stream to queue, RabbitMQ",
        "rq",
        "stream-to-queue",
        f"source: {LOG}",
        "stream: rq",
        "target: jfk",
        "queue: rq",
        "start: existing",
        at=LOG,
        stream="rq",
        log=LOG,
    ),
    _scenario(
        "stream to queue, Event Hubs",
        "eq",
        "stream-to-queue",
        f"source: {EVENTS}",
        "stream: eq",
        "target: jfk",
        "queue: eq",
        "start: existing",
        at=EVENTS,
        stream="eq",
        log=EVENTS,
    ),
    _scenario(
        "queue to stream (by a topic), Event Hubs",
        "qe",
        "queue-to-stream",
        "source: ewr",
        "topic: qe",
        f"target: {EVENTS}",
        "stream: qe",
        LOCK,
        detects=False,
        stream="qe",
        log=EVENTS,
    ),
    _scenario(
        "chain inside a namespace",
        "ch",
        "chain",
        "members: [ewr]",
        "forward: {ch: ch-middle, ch-middle: ch-end}",
        has_routes=False,
    ),
    *_twice(
        _scenario(
            "validate, enrich, encrypt",
            "ve",
            "copy",
            "source: ewr",
            "topic: ve",
            "target: jfk",
            "target_topic: ve",
            AUDIT,
            LOCK,
            *_STEPS,
            has_invalid=True,
        )
    ),
    _scenario(
        "python, sql and set",
        "py",
        "copy",
        "source: ewr",
        "topic: py",
        "target: jfk",
        "target_topic: py",
        AUDIT,
        LOCK,
        "duplicates: origin",
        *_OWN_STEPS,
        has_invalid=True,
        needs_spark=True,
    ),
)


def chosen(names: str) -> tuple[Scenario, ...]:
    """The scenarios of these tasks, comma-separated; all for none."""
    wanted = names.split(",") if names else [each.task for each in SCENARIOS]
    return tuple(each for each in SCENARIOS if each.task in wanted)


def written(scenarios: tuple[Scenario, ...], folder: Path) -> str:
    """The tasks of a federation file in a folder, with the files that they name."""
    for name, text in FILES.items():
        file = folder / name
        file.touch(mode=0o600)
        file.write_text(text, encoding="utf-8")
    lines = []
    for scenario in scenarios:
        lines += [f"  {scenario.task}:", *(f"    {line}" for line in scenario.settings)]
    return "\n".join(lines)
