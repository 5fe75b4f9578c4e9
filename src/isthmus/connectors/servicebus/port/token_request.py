"""Requests by lock token over an entity's `$management` node, queued, a few at a time.

What it is: the queue of renewals and settlements by lock token, in requests of a few hundred tokens, without blocking.
What it is not: the account of locked messages (`token_map`).
Spec: docs/explanation/protocol.md, Management.

Invariants:
    I1. A settlement stays in the queue until the source has answered it, also across lost links and connections.
    I2. A lost lock is not an error: its message is redelivered. Where one token of a request is refused for it, the others
        are requested again without it.
    I3. While renewals are in flight no others are queued.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from isthmus.connectors.servicebus.spark.disposition import TOKEN_CHUNK, start_settling
from isthmus.errors import IsthmusError, LockLostError, MessageNotFoundError, OperationTimeoutError
from isthmus.transport import Management, Reply

__all__ = ["TokenRequests"]

UNDER_WAY = 4
ANSWER_SECONDS = 30.0
RETRY_SECONDS = 0.2


class _Request(NamedTuple):
    tokens: Sequence[bytes]
    state: Any  # the outcome of the messages
    is_renewal: bool


class TokenRequests:
    """The requests of one source.

    Args:
        path: the entity, for errors.
        on_answer: called whenever `advance` has work.
    """

    def __init__(self, path: str, on_answer: Callable[[], None]) -> None:
        self._path = path
        self._on_answer = on_answer
        self._queue: deque[_Request] = deque()
        self._in_flight: list[tuple[Reply, _Request, float]] = []
        self._not_before = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or in flight."""
        return not self._queue and not self._in_flight

    @property
    def is_renewing(self) -> bool:
        """Whether a renewal is queued or in flight."""
        return any(request.is_renewal for _, request, _ in self._in_flight) or any(
            request.is_renewal for request in self._queue
        )

    def settle(self, tokens: Sequence[bytes], state: Any) -> None:
        """Queues settlements."""
        self._add(tokens, state, is_renewal=False)

    def renew(self, tokens: Sequence[bytes]) -> None:
        """Queues renewals."""
        self._add(tokens, None, is_renewal=True)

    def _add(self, tokens: Sequence[bytes], state: Any, *, is_renewal: bool) -> None:
        last = self._queue[-1] if self._queue else None
        joins = last is not None and not is_renewal and not last.is_renewal and last.state == state
        if last is not None and joins and len(last.tokens) + len(tokens) <= TOKEN_CHUNK:
            self._queue[-1] = last._replace(tokens=[*last.tokens, *tokens])
            return
        for start in range(0, len(tokens), TOKEN_CHUNK):
            self._queue.append(_Request(tokens[start : start + TOKEN_CHUNK], state, is_renewal))

    def link_lost(self) -> None:
        """The links are lost: requests in flight are repeated; the account requests renewals again."""
        for _, request, _ in reversed(self._in_flight):
            self._queue.appendleft(request)
        self._in_flight.clear()
        self._queue = deque(request for request in self._queue if not request.is_renewal)
        self._not_before = 0.0

    def deadline(self) -> float:
        """When `advance` has work even without an answer."""
        due = min((limit for _, _, limit in self._in_flight), default=math.inf)
        return min(due, self._not_before) if self._queue and len(self._in_flight) < UNDER_WAY else due

    def advance(self, now: float, management: Callable[[], Management]) -> None:
        """Takes answers and sends further requests.

        Args:
            now: monotonic seconds.
            management: returns the node; called only where a request is to be sent.

        Raises:
            IsthmusError: the source refused permanently, or gave no answer.
        """
        if self._in_flight:
            self._take_answers(now)
        while self._queue and len(self._in_flight) < UNDER_WAY and now >= self._not_before:
            node = management()
            request = self._queue.popleft()
            if request.is_renewal:
                reply = node.start_renew(request.tokens)
            else:
                reply = start_settling(node, request.tokens, request.state)
            self._in_flight.append((reply, request, now + ANSWER_SECONDS))
            reply.when_done(self._on_answer)

    def _take_answers(self, now: float) -> None:
        in_flight, self._in_flight = self._in_flight, []
        fault: IsthmusError | None = None
        for reply, request, limit in in_flight:
            if not reply.done:
                self._in_flight.append((reply, request, limit))
                if now >= limit:
                    fault = fault or OperationTimeoutError(
                        f"'{self._path}/$management': no answer within {ANSWER_SECONDS:g} s"
                    )
            elif reply.error is not None:
                fault = self._refused(reply.error, request, now) or fault
        if fault is not None:
            raise fault

    def _refused(self, error: IsthmusError, request: _Request, now: float) -> IsthmusError | None:
        if isinstance(error, LockLostError | MessageNotFoundError):
            count = len(request.tokens)
            if count > 1:
                for part in (request.tokens[count // 2 :], request.tokens[: count // 2]):
                    self._queue.appendleft(request._replace(tokens=part))
            return None
        if error.retryable:
            self._queue.appendleft(request)
            self._not_before = now + RETRY_SECONDS
            return None
        return error
