"""`DurableSender`: messages are stored on local disk while the namespace is unavailable.

What it is: an outbox folder, a drain and a lane behind the interface of the SDK's sender. What it is not: a sender for two namespaces
(`ReplicatedSender`). See docs/how-to/send-durably.md.

Invariants:
    I1. `send_messages` returns only after the messages are on disk; each such message is delivered at least once, always with the
        same MessageId, however the process ends.
    I2. A message that the namespace can never accept is refused here: a message that is too large, and every message while the namespace
        answers that the key does not permit sending or that the entity is missing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from azure.servicebus.exceptions import MessageSizeExceededError

from isthmus.client.credential import blocking
from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.failure import Failure
from isthmus.client.outbox.drain import CLOSE_SECONDS, Drain, DrainState
from isthmus.client.outbox.store import FolderSource, Limits, Store, claim
from isthmus.client.send.lane import Lane
from isthmus.client.send.parcel import Parcel
from isthmus.client.send.schedule import scheduled
from isthmus.errors import IsthmusError

__all__ = ["AsyncDurableSender", "DurableResult", "DurableSender", "DurableStatistics", "EntityForbiddenError"]

_LIMIT_FILE = "max-message-bytes"
_ASSUMED_LIMIT_BYTES = 252 << 10
"""Every tier accepts a message of this size; the link has to report the limit for larger ones."""


class EntityForbiddenError(IsthmusError):
    """The namespace answered that this sender may not send to the entity; waiting messages stay in the outbox.

    Attributes:
        entity: the queue or topic.
        failure: "forbidden" or "missing".
        error: the SDK's error.
    """

    code = "entity-forbidden"

    def __init__(self, entity: str = "", failure: str = "", error: str = "") -> None:
        super().__init__("", entity=entity, failure=failure, error=error)

    def text(self) -> str:
        a = self.attributes
        return (
            f"the namespace does not take messages for {a.get('entity')!r} from this sender ({a.get('failure')}: {a.get('error')}); "
            "correct the key or create the entity: it is tried again automatically"
        )


@dataclass(frozen=True, slots=True)
class DurableResult:
    """The result of a send.

    Attributes:
        message_ids: MessageIds of the messages, in their order, as they are delivered.
        stored: messages that were written to disk.
    """

    message_ids: tuple[str, ...]
    stored: int


@dataclass(frozen=True, slots=True)
class DurableStatistics:
    """Statistics of a `DurableSender` since it was created.

    Attributes:
        stored: messages written to disk.
        syncs: how often the disk was synced for them.
        is_empty: whether all stored messages, and those found at the start, have been delivered.
        drain: state of the delivery.
    """

    stored: int
    syncs: int
    is_empty: bool
    drain: DrainState

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain values."""
        return asdict(self)


class DurableSender:
    """Stores messages in a folder, from which a thread delivers them. Threads, and processes with the same folder, may share it.

    Args:
        namespace: see `isthmus.client.endpoint` for the accepted forms.
        entity: queue or topic. A folder is for one entity.
        path: the folder of the outbox.
        max_bytes: the most bytes that may wait.
        max_age: the longest wait of the oldest message, in seconds; None for no limit.
        min_free_bytes: free bytes that the disk must keep.
        max_message_bytes: the largest message that the namespace accepts; None: read from the link, and stored.
        attempt_timeout: seconds within which the namespace has to answer a batch; they count from when its last bytes have arrived there.
        drain: whether this process delivers; otherwise another process does, or `isthmus outbox drain`.
        options: further arguments of `ServiceBusClient`.

    Raises:
        StoreError: the folder cannot be used.
        InvalidArgumentError: it is the folder of another entity.
    """

    def __init__(
        self,
        namespace: EndpointLike,
        entity: str,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 1 << 30,
        max_age: float | None = None,
        min_free_bytes: int = 64 << 20,
        max_message_bytes: int | None = None,
        attempt_timeout: float = 10.0,
        drain: bool = True,
        **options: Any,
    ) -> None:
        self._endpoint = Endpoint.of(namespace, **options)
        self._entity = entity
        self._attempt_timeout = attempt_timeout
        self._given_limit = max_message_bytes
        self._drains = drain
        self._starting = threading.Lock()
        self._store = Store(path, Limits(max_bytes, max_age, min_free_bytes))
        claim(self._store.folder, entity)
        self._limit = max_message_bytes or _read_limit(self._store.folder.path)
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        lane = Lane(self._endpoint, self._entity)
        self._drain = Drain(
            FolderSource(self._store.folder), lane, attempt_timeout=self._attempt_timeout, on_limits=self._learn
        )
        if self._drains:
            if self._given_limit is None:
                lane.open_soon()  # to read the largest message size
            self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send_messages(self, message: Any) -> DurableResult:
        """Write a message, a list of messages or a `ServiceBusMessageBatch` to disk; a list is written completely or not at all.

        Args:
            message: messages of azure-servicebus; a message without a MessageId gets one, which does not change.

        Raises:
            MessageSizeExceededError: a message is larger than the namespace accepts.
            EntityForbiddenError: the namespace answered that this sender may not send to the entity.
            OutboxFullError: the outbox is at a limit, or the disk is nearly full.
            StoreError: the disk refused; nothing was stored.
            OutcomeUnknownError: the disk failed while it synced.
        """
        parcel = Parcel.of(message)
        if parcel:
            self._check(parcel)
            self.keep(parcel)
        return DurableResult(parcel.message_ids, len(parcel))

    def keep(self, parcel: Parcel) -> None:
        """Write encoded messages to disk, without checking whether the namespace accepts them."""
        self._start_in_child()
        self._store.append(parcel.payloads)
        self._drain.wake()

    def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> DurableResult:
        """Write messages to disk that are to be enqueued at a time; a message that is delivered later than that is enqueued on delivery."""
        return self.send_messages(scheduled(messages, schedule_time_utc))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all messages that were sent, and all that were found at the start, are delivered.

        Args:
            timeout: the longest wait in seconds; None: no limit.

        Returns:
            Whether they are.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.002
        while not self._store.is_empty:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(0.05, pause * 2)
        return True

    @property
    def is_empty(self) -> bool:
        """Whether all messages that were sent, and all that were found at the start, are delivered."""
        return self._store.is_empty

    def statistics(self) -> DurableStatistics:
        """Statistics since the sender was created."""
        return DurableStatistics(
            self._store.appended, self._store.journal.syncs, self._store.is_empty, self._drain.state()
        )

    def close(self, timeout: float = 0.0, *, is_patient: bool = False) -> None:
        """Stop; waiting messages stay on disk for the next sender.

        Args:
            timeout: seconds for delivering before the stop.
            is_patient: whether the batch that is being sent then is waited for as long as it needs, not only for two seconds: given up, it is
                sent again by the next sender.
        """
        if timeout > 0:
            self.flush(timeout)
        self._store.close()
        self._drain.close(None if is_patient else CLOSE_SECONDS)

    def _start_in_child(self) -> None:
        if os.getpid() != self._pid:
            with self._starting:
                if os.getpid() != self._pid:  # a forked child has no thread that delivers
                    self._start()

    def _check(self, parcel: Parcel) -> None:
        self._start_in_child()
        failure = self._drain.failure
        if failure in (Failure.FORBIDDEN, Failure.MISSING):
            raise EntityForbiddenError(self._entity, failure.value, self._drain.state().error)
        largest = max(map(len, parcel.payloads))
        limit = self._limit or _ASSUMED_LIMIT_BYTES
        if largest > limit:
            known = (
                ""
                if self._limit
                else "; what the namespace takes is not known yet: connect once, or pass max_message_bytes"
            )
            raise MessageSizeExceededError(
                message=f"a message for {self._entity!r} has {largest} bytes; the limit is {limit} bytes{known}"
            )

    def _learn(self, limit: int) -> None:
        if self._given_limit is None and limit > 0 and limit != self._limit:
            self._limit = limit
            _write_limit(self._store.folder.path, limit)


class AsyncDurableSender:
    """`DurableSender` for asyncio: threads wait for the disk. The same arguments."""

    def __init__(self, namespace: EndpointLike, entity: str, path: str | os.PathLike[str], **options: Any) -> None:
        self._sender = DurableSender(blocking(namespace), entity, path, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send_messages(self, message: Any) -> DurableResult:
        """As `DurableSender.send_messages`."""
        return await asyncio.to_thread(self._sender.send_messages, message)

    async def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> DurableResult:
        """As `DurableSender.schedule_messages`."""
        return await asyncio.to_thread(self._sender.schedule_messages, messages, schedule_time_utc)

    async def flush(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  # as the method that it mirrors
        """As `DurableSender.flush`."""
        return await asyncio.to_thread(self._sender.flush, timeout)

    @property
    def is_empty(self) -> bool:
        """As `DurableSender.is_empty`; it reads the folder."""
        return self._sender.is_empty

    def statistics(self) -> DurableStatistics:
        """As `DurableSender.statistics`."""
        return self._sender.statistics()

    async def close(self, timeout: float = 0.0) -> None:  # noqa: ASYNC109  # as the method that it mirrors
        """As `DurableSender.close`."""
        await asyncio.to_thread(self._sender.close, timeout)


def _read_limit(path: Path) -> int:
    try:
        return int((path / _LIMIT_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _write_limit(path: Path, limit: int) -> None:
    fresh = path / f"{_LIMIT_FILE}.{os.getpid()}"
    try:
        fresh.write_text(str(limit), encoding="ascii")
        fresh.replace(path / _LIMIT_FILE)
    except OSError:  # it is read from the link again
        return
