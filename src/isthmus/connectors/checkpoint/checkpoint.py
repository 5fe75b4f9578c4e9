"""The checkpoint, the record of how far a route has read a partition, and the protocol of stores.

What it is: the record, the protocol of stores, and the choice of a store. Calls of a store block. What it is not: when a checkpoint is written
(`isthmus.connectors.kafka.consumer.commit`).

A checkpoint names the last event that is settled; reading continues after it. The vendor's SDKs use the same rule, so that they can
continue from our checkpoints, and we from theirs.

Invariants:
    I1. A store never replaces a checkpoint by one of a lower sequence number, unless it `begins_again`: a fenced reader that writes
        late moves no checkpoint back. Of logs that were created at different times, the later one's checkpoint is kept.
    I2. A checkpoint that was written survives a power failure.
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
    """The last event that is settled.

    Attributes:
        sequence: its sequence number.
        offset: its offset, as the service reported it; empty: unknown.
        begins_again: the partition was created again since the existing checkpoint: it is replaced in any case.
        created_ms: when the checkpoint's log was created, as stored; 0: unknown.
    """

    sequence: int
    offset: str = ""
    begins_again: bool = False
    created_ms: int = 0

    @property
    def is_numbered(self) -> bool:
        """Whether it has a sequence number: some of the vendor's SDKs write an offset alone."""
        return self.sequence >= 0 or self.offset in ("", START_OFFSET)

    def stays(self, other: Checkpoint, created_ms: int) -> bool:
        """Whether this existing checkpoint is kept instead of another, of a log created at that time (I1 of stores)."""
        if created_ms and self.created_ms not in (0, created_ms):
            return created_ms < self.created_ms
        return self.sequence > other.sequence and not other.begins_again


class GroupKey(NamedTuple):
    """The owner of checkpoints: `identity` identifies the namespace, `host` is its name.

    Checkpoints are written with `created_ms`, the time when the log was created; 0: unknown.
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
    """Stores checkpoints of consumer groups."""

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
        SecretError: a reference cannot be resolved.
        MissingExtraError: azure-storage-blob is not installed.
        IsthmusError: the store cannot be used.
    """
    if options.checkpoint_container:
        from isthmus.connectors.checkpoint.blob_store import BlobStore

        parts = urlsplit(options.checkpoint_container)
        return BlobStore(
            f"{parts.scheme}://{parts.netloc}", parts.path.strip("/"), options.checkpoint_connection, options.identity
        )
    from isthmus.connectors.checkpoint.folder_store import FolderStore

    return FolderStore(options.checkpoints)
