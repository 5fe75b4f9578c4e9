"""The durable log and index of a namespace.

What it is: `isthmus.entities.Journal` on RocksDB (`RocksJournal`) and in memory (`MemoryJournal`), with the same
conformance tests (`isthmus.testing.store_conformance`); and the bodies of large messages in files beside it
(`BlobFolder`).
"""

from __future__ import annotations

from isthmus.store.blob import BlobFolder
from isthmus.store.memory import MemoryJournal
from isthmus.store.open_files import open_files_limit
from isthmus.store.private_folder import make_private, narrow_files
from isthmus.store.rocks import RocksJournal

__all__ = ["BlobFolder", "MemoryJournal", "RocksJournal", "make_private", "narrow_files", "open_files_limit"]
