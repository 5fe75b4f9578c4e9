"""How far a route has read each partition, as it is kept: the checkpoint, and what a store of checkpoints does.

What it is: the record, the protocol of stores, and the choice of one. Calls of a store block. What it is not: when a checkpoint is written
(`isthmus.connectors.kafka.consumer.commit`).

A checkpoint names the last event that is done with; reading goes on behind it. That is how the vendor's SDKs have it, so that any of them
can go on from ours, and we from theirs.

Invariants:
    I1. A store never replaces a checkpoint by one of a lower sequence number, but where it `begins_again`: a reader that was shut out,
        and writes late, takes nothing back. Of logs that were made at different times the later one's stands.
    I2. A checkpoint that was written is there after a power cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from isthmus.connectors.eventhubs.option import HubOptions
from isthmus.connectors.eventhubs.partition.address import START_OFFSET
from isthmus.errors import IsthmusError

__all__ = ["Checkpoint", "CheckpointError", "CheckpointStore", "GroupKey", "open_store"]


class Checkpoint(NamedTuple):
    """The last event that is done with.

    Attributes:
        sequence: its sequence number.
        offset: its offset, as it was told; empty: not known.
        begins_again: the partition was made again since the checkpoint that exists: it is replaced whatever it says.
        created_ms: when the log was made that it is of, as it was kept; 0: that was not told.
    """

    sequence: int
    offset: str = ""
    begins_again: bool = False
    created_ms: int = 0

    @property
    def is_numbered(self) -> bool:
        """Whether it tells a sequence number: some of the vendor's SDKs keep an offset alone."""
        return self.sequence >= 0 or self.offset in ("", START_OFFSET)

    def stays(self, other: Checkpoint, created_ms: int) -> bool:
        """Whether this one, which exists, is not replaced by another, of a log that was made then (I1 of stores)."""
        if created_ms and self.created_ms not in (0, created_ms):
            return created_ms < self.created_ms
        return self.sequence > other.sequence and not other.begins_again


class GroupKey(NamedTuple):
    """Whose checkpoints: `identity` tells the namespace from all others, `host` is its name.

    What is written is kept with `created_ms`, when the log was made; 0: that is not told.
    """

    identity: str
    host: str
    hub: str
    group: str
    created_ms: int = 0


class CheckpointError(IsthmusError):
    """A store of checkpoints cannot be read or written."""

    code = "checkpoint-store"
    retryable = True


class CheckpointStore(Protocol):
    """Keeps checkpoints of consumer groups."""

    def load(self, key: GroupKey) -> dict[int, Checkpoint]:
        """The checkpoints of a group by partition.

        Raises:
            CheckpointError: they cannot be read.
        """
        ...

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replaces checkpoints, by partition.

        Raises:
            CheckpointError: not all of them could be written.
        """
        ...

    def close(self) -> None:
        """Closes connections."""
        ...


def open_store(options: HubOptions) -> CheckpointStore:
    """The store that options name; blocks.

    Raises:
        SecretError: a reference leads nowhere.
        MissingExtraError: azure-storage-blob is not installed.
        IsthmusError: it cannot be used.
    """
    if options.checkpoint_container:
        from isthmus.connectors.checkpoint.blob_store import BlobStore

        parts = urlsplit(options.checkpoint_container)
        return BlobStore(
            f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"), options.checkpoint_connection, options.identity
        )
    from isthmus.connectors.checkpoint.folder_store import FolderStore

    return FolderStore(options.checkpoints)
