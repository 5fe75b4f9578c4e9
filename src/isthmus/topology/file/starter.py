"""Starter files.

What it is: for each pattern a federation file without faults, with every available setting shown and
explained from its declaration. What it is not: a template engine.

Invariants:
    I1. Every starter is without faults.
    I2. Every available setting of the pattern and of a namespace is in it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from isthmus.topology.file.reader import NAMESPACE_SPEC, VERSION
from isthmus.topology.file.setting import Setting
from isthmus.topology.kind import KAFKA
from isthmus.topology.pattern import LOG_PATTERNS, PATTERNS

__all__ = ["starter"]

# The settings that a starter writes; the others are comments.
_WRITTEN = {
    "active-passive": {"topic": "flights", "primary": "ewr", "secondary": "jfk", "failover_within": "1m"},
    "spillover": {"queue": "payments", "members": "[ewr, jfk]", "deadline": "10m"},
    "copy": {"source": "ewr", "topic": "flights", "target": "jfk"},
    "move": {"source": "ewr", "queue": "departures", "target": "jfk"},
    "consolidate": {"sources": "[ewr, jfk]", "topic": "flights", "target": "jfk", "target_topic": "all-flights"},
    "fan-out": {"topic": "flights", "hub": "ewr", "members": "[jfk]"},
    "split": {
        "source": "ewr",
        "topic": "flights",
        "targets": "[{to: jfk, queue: departures, filter: \"carrier = 'UA'\"}]",
    },
    "stream-to-queue": {"source": "hub", "stream": "flights", "target": "ewr", "queue": "departures"},
    "queue-to-stream": {"source": "ewr", "queue": "departures", "target": "hub", "stream": "flights"},
    "chain": {"members": "[ewr]", "forward": "{inbox: flights, flights/Subscriptions/boards: boards}"},
}

_WIDTH = 100
_HEAD = """\
# A federation of namespaces. Check it with `isthmus lint`, see the changes with `isthmus plan`, create the entities
# with `isthmus apply`, move messages with `isthmus run`.
isthmus: {version}

# Alias -> namespace. The alias becomes part of every message's identity: keep it short, and do not change it.
namespaces:
"""


def starter(pattern: str) -> str:
    """The text of a federation file with one task of a pattern.

    Raises:
        KeyError: there is no such pattern.
    """
    spec = PATTERNS[pattern].spec
    lines = [_HEAD.format(version=VERSION).rstrip()]
    lines += ["  ewr:", *_settings(NAMESPACE_SPEC.settings, {"connection": "env:EWR_CONNECTION"})]
    if pattern in LOG_PATTERNS:
        lines += ["  hub:", f"    kind: {KAFKA.name}", *_settings(KAFKA.settings, {"bootstrap": "127.0.0.1:9092"})]
    else:
        lines += ["  jfk:", "    connection: env:JFK_CONNECTION"]
    lines += ["", *_comment(spec.description, ""), "tasks:", "  flights:", f"    pattern: {spec.name}"]
    required = {setting.name: setting.example for setting in spec.settings if setting.required}
    members = required | {"topic": "flights", "members": "[ewr, jfk]"}
    lines += _settings(spec.settings, _WRITTEN.get(pattern, members))
    return "\n".join(lines) + "\n"


def _settings(settings: Iterable[Setting], written: dict[str, str]) -> Iterator[str]:
    for setting in settings:
        if not setting.available:
            continue
        yield from _comment(setting.description, "    ")
        if setting.name in written:
            yield f"    {setting.name}: {written[setting.name]}"
        else:
            value = setting.show(setting.default) or setting.example
            yield f"    # {setting.name}: {value}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
