"""Small files of the data folder, written whole and for the owner only.

What it is: one function for keys and certificates. What it is not: the store.

Invariants:
    I1. The file is born with its mode; no wider one is ever seen.
    I2. Interrupted at any instant, by a power cut too, the old content or the new one stands.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_file"]


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file at once.

    Raises:
        OSError: the folder or the disk refuses; the old content stands.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
