"""Requests that the administration client repeats.

What it is: how long the client waits before it does, and whether the previous request may have been carried out although its answer
was lost. What it is not: the repetition, which is the client's.

Invariants:
    I1. The client waits for `LONGEST_WAIT_SECONDS` at most before it repeats a request: otherwise it would wait as long as requested, an hour
        where a proxy is in maintenance, and the caller would not know why.
    I2. A request that was not sent, or that was refused, does not count as carried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.core.exceptions import AzureError, ServiceRequestError

from isthmus.connectors.http.client import retry_after

__all__ = ["LONGEST_WAIT_SECONDS", "Repetition"]

LONGEST_WAIT_SECONDS = 10
_RETRY_AFTER = "Retry-After"
# Of a gateway, or of a service that failed during its work.
_UNKNOWN = frozenset({500, 502, 504})


class Repetition:
    """The requests of one thread; the client repeats the same request object."""

    def __init__(self) -> None:
        self._request: object = None
        self._is_unknown = False

    def begin(self, request: object) -> None:
        """A request is about to be sent, for the first time or again."""
        if request is not self._request:
            self._request, self._is_unknown = request, False

    def failed(self, error: AzureError) -> None:
        """The request got no answer."""
        self._is_unknown |= not isinstance(error, ServiceRequestError)  # which means that nothing was sent

    def answered(self, response: Any) -> None:
        """The request got an answer, whose wait is limited (I1)."""
        self._is_unknown |= response.status_code in _UNKNOWN
        if retry_after({"retry-after": response.headers.get(_RETRY_AFTER, "")}) > LONGEST_WAIT_SECONDS:
            response.headers[_RETRY_AFTER] = str(LONGEST_WAIT_SECONDS)

    @contextmanager
    def done_before(self, answer: type[AzureError]) -> Iterator[None]:
        """A context in which this answer to a repeated request is ignored: the same request, whose answer was lost, has already succeeded."""
        try:
            yield
        except answer:
            if not self._is_unknown:
                raise
