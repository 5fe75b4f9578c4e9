"""The number of file descriptors for connections, and the reserve for the store.

What it is: the division of the process's limit of descriptors. What it is not: the enforcement (`admission`).

Invariants:
    I1. Whatever clients do, descriptors are left for the store's files: a store that cannot open a file fails.
"""

from __future__ import annotations

import resource

from isthmus.store import open_files_limit

__all__ = ["allow_many", "socket_limit", "upload_limit"]

# Connections and the store's files; as far as the system allows.
_OPEN_FILES = 65_536
# Large messages that arrive at once, each with a file open.
_UPLOADS = 256
# The log, the listeners, the loop, libraries that are loaded later, bodies that are read, a back-up.
_OTHERS = 64
# The store of a namespace, and by default four of its partitioned entities.
_STORES = 5


def allow_many() -> None:
    """Raises the process's limit: each connection is an open file, and the limit of a shell is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def socket_limit(namespaces: int = 1) -> int:
    """How many sockets each of so many namespaces in this process may have open."""
    kept = _OTHERS + namespaces * (_STORES * open_files_limit() + upload_limit(namespaces))
    return max(8, (_soft() - min(kept, _soft() * 3 // 4)) // namespaces)


def upload_limit(namespaces: int = 1) -> int:
    """How many large messages may arrive at once at each of so many namespaces in this process."""
    return max(4, min(_UPLOADS, _soft() // 32) // namespaces)


def _soft() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES if soft == resource.RLIM_INFINITY else soft
