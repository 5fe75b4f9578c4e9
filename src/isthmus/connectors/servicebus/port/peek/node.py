"""The `$management` node of a source, and the queries that request pages from it.

What it is: the links to the node, opened when they are first needed and again when they are lost, and one page at a time for the
waiting queries. What it is not: the queries (`query`).

Invariants:
    I1. At most one page is requested at a time; queries are served in their order.
    I2. A page that does not arrive within `PAGE_SECONDS` ends the source's link.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from isthmus.connectors.servicebus.port.peek.query import PeekQuery
from isthmus.errors import MessageNotFoundError, OperationTimeoutError
from isthmus.transport import Client, Management, Reply
from isthmus.transport.management import peeked

__all__ = ["Node"]

PAGE_SECONDS = 30.0
# After an answer that requests a retry.
RETRY_SECONDS = 0.5


class Node:
    """The node of one source.

    Args:
        path: the source's entity.
        on_answer: called when `advance` has work.
    """

    def __init__(self, path: str, on_answer: Callable[[], None]) -> None:
        self._path = path
        self._on_answer = on_answer
        self._management: Management | None = None
        self._queries: deque[PeekQuery[Any]] = deque()
        self._reply: Reply | None = None
        self._due = math.inf

    def management(self, client: Client) -> Management:
        """The node over this connection.

        Raises:
            IsthmusError: the connection is lost.
        """
        management = self._management
        if management is None or management.error is not None or management.client is not client:
            management = self._management = Management(client, self._path)
        return management

    def run(self, query: PeekQuery[Any] | None) -> None:
        """Serves a query; `advance` returns it when it has its result. No error if it is being served."""
        if query is not None and query.wanted is not None and query not in self._queries:
            self._queries.append(query)
            self._on_answer()

    def deadline(self) -> float:
        """When `advance` has work even without an answer."""
        return self._due

    def advance(self, now: float, client: Client) -> list[PeekQuery[Any]]:
        """Takes answers and requests pages; returns the queries that have their result.

        Raises:
            IsthmusError: the source refused permanently, or gave no answer.
        """
        done: list[PeekQuery[Any]] = []
        while self._queries:
            reply = self._reply
            if reply is None:
                if now < self._due < math.inf:
                    break
                wanted = self._queries[0].wanted
                assert wanted is not None
                self._reply = self.management(client).start_peek(wanted.start, wanted.size)
                self._due = now + PAGE_SECONDS
                self._reply.when_done(self._on_answer)
            elif not reply.done:
                if now >= self._due:
                    raise OperationTimeoutError(
                        f"'{self._path}/$management': no answer to peek within {PAGE_SECONDS:g} s"
                    )
                break
            else:
                self._reply, self._due = None, math.inf
                if not self._answer(reply):
                    self._due = now + RETRY_SECONDS
                elif self._queries[0].wanted is None:
                    done.append(self._queries.popleft())
        return done

    def _answer(self, reply: Reply) -> bool:
        if reply.error is None:
            self._queries[0].answer(peeked(reply))
        elif isinstance(reply.error, MessageNotFoundError):
            self._queries[0].answer(())
        elif reply.error.retryable:
            return False
        else:
            raise reply.error
        return True

    def link_lost(self) -> None:
        """The connection or the source's link is lost, and with it the queries."""
        management, self._management = self._management, None
        self._queries.clear()
        self._reply, self._due = None, math.inf
        if management is not None and management.client.error is None:
            management.close()
