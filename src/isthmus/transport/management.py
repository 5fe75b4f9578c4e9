"""An entity's `$management` node (docs/explanation/protocol.md, Management).

What it is: peek, renew of locks and settling by lock token, each as a pending request (`start_…`) and as a blocking
call. What it is not: administration of entities.

Invariants:
    I1. Lock tokens are the bytes of the delivery tag; on the wire they are UUIDs in .NET's byte order.
    I2. An empty answer (204) is an empty list, not an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.amqp.types import Array, Int, Long, UInt
from isthmus.errors import IsthmusError, LockLostError, MessageNotFoundError
from isthmus.transport.request import Reply, RequestLink

if TYPE_CHECKING:
    from isthmus.transport.client import Client

__all__ = ["Management"]

_TIMEOUT_SECONDS = 30.0


class Management:
    """The management node of the entity at `path`.

    Args:
        client: an open connection, authorized for `path`.
        path: queue, topic, subscription or dead-letter queue.
    """

    def __init__(self, client: Client, path: str) -> None:
        self.client = client
        self.path = path
        self._links = RequestLink(client, f"{path}/$management", path)

    @property
    def error(self) -> IsthmusError | None:
        """Why the links can no longer be used; None while they can."""
        return self._links.error

    def start(self, operation: str, body: dict[str, Any]) -> Reply:
        """Queues the request `com.microsoft:<operation>`."""
        properties = {
            "operation": f"com.microsoft:{operation}",
            "com.microsoft:server-timeout": UInt(int(_TIMEOUT_SECONDS * 1000)),
        }
        return self._links.request(properties, body)

    def finish(self, reply: Reply, timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        """Blocks until the answer is there; its body.

        Args:
            reply: of `start`.
            timeout_seconds: how long nothing of the request or the answer may move.

        Raises:
            IsthmusError: what the peer refused, or why no answer came.
            OperationTimeoutError: no answer in time.
        """
        self.client.wait_answer(lambda: reply.done, timeout_seconds, f"'{self.path}/$management': no answer")
        if reply.error is not None:
            raise reply.error
        return reply.body

    def start_peek(self, from_sequence: int, count: int) -> Reply:
        """Queues a peek at up to `count` messages from sequence number `from_sequence` on."""
        return self.start("peek-message", {"from-sequence-number": Long(from_sequence), "message-count": Int(count)})

    def peek(self, from_sequence: int, count: int) -> list[bytes]:
        """Encoded messages in sequence order, nothing locked; empty at the end.

        Raises:
            IsthmusError: the peer refused or is gone.
        """
        reply = self.start_peek(from_sequence, count)
        try:
            self.finish(reply)
        except MessageNotFoundError:
            return []
        return peeked(reply)

    def start_renew(self, tokens: Sequence[bytes]) -> Reply:
        """Queues a renewal of locks."""
        return self.start("renew-lock", {"lock-tokens": _uuids(tokens)})

    def renew(self, tokens: Sequence[bytes]) -> list[int]:
        """Renews locks; returns the wall times, in milliseconds, at which they expire.

        Raises:
            LockLostError: one of them is lost.
        """
        return [int(expiry) for expiry in self.finish(self.start_renew(tokens))["expirations"]]

    def renew_all(self, tokens: Sequence[bytes]) -> list[bytes]:
        """Renews the locks that can be renewed; returns the tokens of those that are lost.

        A peer may refuse a whole request for one lost lock (Azure Service Bus does): the halves are then asked for again.
        """
        try:
            self.renew(tokens)
        except LockLostError:
            if len(tokens) == 1:
                return list(tokens)
            half = len(tokens) // 2
            return self.renew_all(tokens[:half]) + self.renew_all(tokens[half:])
        return []

    def renew_groups(self, groups: Iterable[Sequence[bytes]]) -> list[bytes]:
        """Renews locks, each group by a request, all of which are under way at once; the tokens of those that are lost."""
        lost: list[bytes] = []
        for tokens, reply in [(tokens, self.start_renew(tokens)) for tokens in groups]:
            try:
                self.finish(reply)
            except LockLostError:
                lost += self.renew_all(tokens)
        return lost

    def renew_session(self, session_id: str) -> int:
        """Renews the lock of a session that a link of this connection holds; returns the wall time, in ms, at which it expires.

        Raises:
            LockLostError: it is lost.
        """
        return int(self.finish(self.start("renew-session-lock", {"session-id": session_id}))["expiration"])

    def start_disposition(
        self,
        status: str,
        tokens: Sequence[bytes],
        *,
        reason: str | None = None,
        description: str | None = None,
    ) -> Reply:
        """Queues a settlement by lock token; `status` is completed, abandoned, defered or suspended (dead-letter)."""
        body: dict[str, Any] = {"disposition-status": status, "lock-tokens": _uuids(tokens)}
        if reason is not None:
            body["deadletter-reason"] = reason
        if description is not None:
            body["deadletter-description"] = description
        return self.start("update-disposition", body)

    def close(self) -> None:
        """Ends the links."""
        self._links.close()


def peeked(reply: Reply) -> list[bytes]:
    """The messages of a peek's answer."""
    if reply.status == 204 or not isinstance(reply.body, dict):
        return []
    return [item["message"] for item in reply.body.get("messages", ())]


def _uuids(tokens: Sequence[bytes]) -> Array:
    return Array(0x98, [uuid.UUID(bytes_le=bytes(token)) for token in tokens])
