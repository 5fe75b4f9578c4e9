"""The limit of files that one store may keep open.

What it is: RocksDB's `max_open_files`, a share of the process's limit. What it is not: a limit of the data:
files beyond it are opened when they are read.
"""

from __future__ import annotations

import resource

__all__ = ["open_files_limit"]

_MOST = 512
_LEAST = 16
_SHARE = 16


def open_files_limit() -> int:
    """For one store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else max(_LEAST, min(_MOST, soft // _SHARE))
