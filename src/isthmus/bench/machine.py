"""The machine and the versions of a measurement, without anything that identifies the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

__all__ = ["describe_machine", "file_system"]

_PACKAGES = ("isthmus", "pyspark", "pyarrow", "rocksdict", "uvloop", "azure-servicebus")


def describe_machine(data: Path) -> dict[str, str]:
    """The processor, memory, systems and versions that a result depends on.

    Args:
        data: where the measured namespaces keep their data.
    """
    facts = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": file_system(data),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts


def file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, e.g. `ext4`; measurements on `tmpfs` say nothing about a disk."""
    resolved = folder.resolve()
    best, kind = "", "unknown"
    for partition in psutil.disk_partitions(all=True):
        mount = partition.mountpoint
        if (resolved.is_relative_to(mount)) and len(mount) >= len(best):
            best, kind = mount, partition.fstype
    return kind


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
