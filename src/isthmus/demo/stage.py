"""The demo's set-up: three namespaces, each in a process of its own, and the federation file between them.

What it is: starting and stopping `isthmus namespace serve` for each airport, writing the file, and lint, plan and apply as
an operator would run them. What it is not: the steps of the demo; no message is sent here.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from isthmus.connectors.administration import Administrations
from isthmus.demo.flight import ORIGINS
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology import lint, plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Federation

__all__ = ["AUDIT", "BOARDS", "TASK", "TOPIC", "Stage"]

TASK = TOPIC = "flights"
BOARDS, AUDIT = "boards", "audit"

_FILE = """\
# Three airports. Every departure that is published at one of them is known at all.
isthmus: 1
namespaces:
{namespaces}
tasks:
  {task}:
    pattern: all-active
    topic: {topic}
    members: [{members}]
    subscriptions: [{boards}, {audit}]
"""


class Stage:
    """Three namespaces and their federation file.

    Args:
        folder: where all files go.

    Attributes:
        file: the federation file.
        namespaces: by alias.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "isthmus.yaml"
        self.namespaces = {name.lower(): NamespaceProcess(folder / name.lower()) for name in ORIGINS}

    @property
    def aliases(self) -> tuple[str, ...]:
        """The namespaces' aliases."""
        return tuple(self.namespaces)

    def open(self) -> float:
        """Start the namespaces; the seconds that the slowest took.

        Raises:
            NamespaceStartError: one of them did not start.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(self.namespaces)) as pool:
            return max(pool.map(NamespaceProcess.start, self.namespaces.values()))

    def federate(self) -> tuple[Federation, int]:
        """Write the file, and lint, plan and apply it; the federation and how many changes were made.

        Raises:
            ConfigError: never, unless the demo itself is at fault.
            AdministrationError: a namespace refused a change.
        """
        lines = []
        for alias, namespace in self.namespaces.items():
            connection = self.folder / f"{alias}.connection"
            descriptor = os.open(connection, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as secret:
                secret.write(namespace.connection_string)
            authority = namespace.ca_file.relative_to(self.folder)
            lines.append(f'  {alias}: {{connection: "file:{connection.name}", ca_file: {authority}}}')
        text = _FILE.format(
            namespaces="\n".join(lines),
            task=TASK,
            topic=TOPIC,
            members=", ".join(self.aliases),
            boards=BOARDS,
            audit=AUDIT,
        )
        self.file.write_text(text, encoding="utf-8")
        assert not lint(text, str(self.file))
        federation = load(self.file)
        with Administrations(federation) as administrations:
            applied = administrations.apply(plan(federation, administrations.observe()))
        if applied.error is not None:
            raise applied.error
        return federation, len(applied.done)

    def close(self) -> None:
        """Stop the namespaces."""
        with ThreadPoolExecutor(len(self.namespaces)) as pool:
            list(pool.map(NamespaceProcess.stop, self.namespaces.values()))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
