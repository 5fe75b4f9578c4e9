"""CPU time and resident memory of processes, by name.

What it is: sums over named groups of processes. A group is a process with its descendants (Spark's driver, its
virtual machine and its Python workers are distinguished by their roles). It starts and ends nothing.

Invariants:
    I1. CPU time of a process that ended between two readings counts up to the last reading that included it: a sum of
        readings never decreases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

__all__ = ["Account", "Usage", "roles_of_tree"]


@dataclass(slots=True)
class Usage:
    """The usage of one group.

    Attributes:
        cpu_seconds: user and system time.
        resident_bytes: resident set, summed over the group's processes at the last reading.
        shared_out_bytes: the same with pages that several processes share counted once, in equal parts (Linux's PSS);
            Python workers are forks and share most of theirs.
        processes: how many there were at the last reading.
    """

    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    shared_out_bytes: int = 0
    processes: int = 0


def roles_of_tree(root: int) -> dict[str, list[int]]:
    """The processes of a Spark application: its driver, its Java virtual machine and its Python workers."""
    roles: dict[str, list[int]] = {"driver": [root], "jvm": [], "workers": []}
    try:
        children = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return roles
    for child in children:
        try:
            name = child.name()
        except psutil.NoSuchProcess:
            continue
        roles["jvm" if name.startswith("java") else "workers"].append(child.pid)
    return roles


@dataclass(slots=True)
class Account:
    """Reads how much CPU time and memory groups of processes use.

    Attributes:
        trees: process ids by group name; each includes its descendants.
        spark: process id of a Spark driver whose parts are accounted as `driver`, `jvm` and `workers`.
    """

    trees: Mapping[str, int]
    spark: int | None = None
    _seen: dict[tuple[str, int], float] = field(default_factory=dict)

    def read(self) -> dict[str, Usage]:
        """CPU time since each process started, and memory now, by group."""
        now: dict[str, Usage] = {}
        for name, pids in self._groups().items():
            usage = now[name] = Usage()
            for pid in pids:
                self._read_process(name, pid, usage)
        for (name, _), seconds in self._seen.items():
            now.setdefault(name, Usage()).cpu_seconds += seconds
        return now

    def _read_process(self, name: str, pid: int, usage: Usage) -> None:
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            memory = process.memory_full_info()
            usage.resident_bytes += memory.rss
            usage.shared_out_bytes += getattr(memory, "pss", memory.rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return
        usage.processes += 1
        self._seen[name, pid] = times.user + times.system

    def _groups(self) -> dict[str, list[int]]:
        groups: dict[str, list[int]] = {}
        for name, root in self.trees.items():
            try:
                groups[name] = [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
            except psutil.NoSuchProcess:
                groups[name] = []
        if self.spark is not None:
            groups.update(roles_of_tree(self.spark))
        return groups


def cpu_us_per_message(before: Mapping[str, Usage], after: Mapping[str, Usage], messages: int) -> dict[str, float]:
    """CPU microseconds per message by group, and their `total`, between two readings of one account."""
    spent = {
        name: (usage.cpu_seconds - before.get(name, Usage()).cpu_seconds) / max(1, messages) * 1e6
        for name, usage in after.items()
    }
    return {**{name: round(value, 2) for name, value in spent.items()}, "total": round(sum(spent.values()), 2)}
