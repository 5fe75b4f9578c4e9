"""Why a micro-batch failed.

What it is: the errors of a streaming read. What it is not: errors of connection and link, which are
the transport's.
"""

from __future__ import annotations

from isthmus.errors import IsthmusError

__all__ = [
    "BatchEntityError",
    "BatchFolderError",
    "BatchInUseError",
    "BatchLockError",
    "BatchOverError",
    "BatchReadInPartError",
    "BatchUnreadError",
]


class BatchReadInPartError(IsthmusError):
    """Spark committed a batch without reading all its rows; none of its messages was settled."""

    code = "batch-read-in-part"

    def __init__(self, path: str = "", batch: int = 0, count: int = 0) -> None:
        super().__init__("", path=path, batch=batch, count=count)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': batch {a.get('batch')} of {a.get('count')} messages was read only in part (limit, take, show "
            "or isEmpty, and no action that reads all rows); none of them was settled, and they are delivered again when their locks "
            "have expired. Read the batch as a whole: persist() it first, or filter rows with a condition instead of a limit"
        )


class BatchUnreadError(IsthmusError):
    """Spark committed batches without reading any row of them; nothing was received for them."""

    code = "batch-unread"

    def __init__(self, path: str = "", batch: int = 0, count: int = 0) -> None:
        super().__init__("", path=path, batch=batch, count=count)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': nothing read the last {a.get('count')} batches, up to {a.get('batch')}; their messages still wait. The function "
            "of foreachBatch returned without an action, Spark planned the read away (a join with an empty table, a condition that is never "
            "true), or the sink has batches with these numbers (a new checkpointLocation with the folder of an old table)"
        )


class BatchFolderError(IsthmusError):
    """A worker cannot reach the folder in which the driver keeps the batch."""

    code = "batch-folder"

    def __init__(self, path: str = "", folder: str = "", reason: str = "") -> None:
        super().__init__("", path=path, folder=folder, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': this executor cannot use {a.get('folder')}, where the driver keeps the messages of a batch so "
            f"that each evaluation reads the same ones ({a.get('reason')}). Set option spool to a folder that the driver and "
            "all executors share; persist() a batch that is evaluated more than once"
        )


class BatchLockError(IsthmusError):
    """The folder for the batches of a query is on a file system whose locks do not apply across machines."""

    code = "batch-lock"

    def __init__(self, folder: str = "", reason: str = "") -> None:
        super().__init__("", folder=folder, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return (
            f"Files in {a.get('folder')} cannot be locked against other machines ({a.get('reason')}): two attempts of a task "
            "would receive for one batch. Set option spool to a folder whose file system has locks for all machines, e.g. NFS "
            "mounted without nolock and local_lock"
        )


class BatchOverError(IsthmusError):
    """A batch is evaluated after Spark has committed it: its messages are settled."""

    code = "batch-over"

    def __init__(self, path: str = "", batch: int = 0) -> None:
        super().__init__("", path=path, batch=batch)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': batch {a.get('batch')} is committed, and its messages are settled; evaluate a batch before the "
            "function of foreachBatch returns"
        )


class BatchEntityError(IsthmusError):
    """The checkpoint belongs to a query of another entity."""

    code = "batch-entity"

    def __init__(self, path: str = "", other: str = "", folder: str = "") -> None:
        super().__init__("", path=path, other=other, folder=folder)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': the checkpoint belongs to a query of '{a.get('other')}', whose messages are in {a.get('folder')} and "
            "would never be settled. Give this query a checkpointLocation of its own"
        )


class BatchInUseError(IsthmusError):
    """Another driver uses the batches of the same checkpoint."""

    code = "batch-in-use"
    retryable = True

    def __init__(self, path: str = "", folder: str = "") -> None:
        super().__init__("", path=path, folder=folder)

    def text(self) -> str:
        a = self.attributes
        return (
            f"'{a.get('path')}': another query with the same checkpoint uses {a.get('folder')}. Stop that query, or give each "
            "query a checkpointLocation of its own (a copied checkpoint folder is still the same)"
        )
