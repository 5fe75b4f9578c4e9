"""The driver's connection to an entity's `$management` node.

What it is: a connection made when it is first needed, and made again once when it was lost: a namespace closes connections
that were idle during a long batch. What it is not: safe for two threads; each has its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.errors import IsthmusError
from isthmus.transport import Client, Management

__all__ = ["Node"]

T = TypeVar("T")


class Node:
    """The node of the entity that the options name."""

    def __init__(self, options: SourceOptions, name: str) -> None:
        self._options = options
        self._name = name
        self._client: Client | None = None
        self._management: Management | None = None

    def call(self, use: Callable[[Management], T]) -> T:
        """Returns the result of `use`, which is called again, once, where the connection was lost meanwhile.

        Raises:
            IsthmusError: the error of the second call, or an error that a new connection does not resolve.
        """
        for attempt in (0, 1):
            try:
                return use(self._connected())
            except IsthmusError as error:
                lost = self._client is None or self._client.error is not None
                if lost or error.retryable:
                    self.close()
                if attempt or not (error.retryable or lost):
                    raise
        raise AssertionError("unreachable")

    def _connected(self) -> Management:
        if self._management is None or self._client is None or self._client.error is not None:
            self.close()
            path = self._options.entity.strip("/")
            self._client = open_client(endpoint_of(self._options), path, f"{self._name}-{os.getpid()}")
            self._management = Management(self._client, path)
        return self._management

    def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            self._client.abandon()
        self._client = self._management = None
