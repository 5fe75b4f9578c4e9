"""Clients of queues, and the meaning of their errors.

What it is: the creation of `azure.storage.queue.QueueClient` from options, and the text and meaning of its exceptions. What it is not: its
use (`source`, `target`). Specification: Microsoft Learn, "Queue Storage error codes".

Invariants:
    I1. The SDK repeats no request by itself: the bridge decides what is repeated.
    I2. No text contains a key or a signature.
    I3. A request without answer ends after `timeout_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.identity import shared_credential
from isthmus.connectors.queuestorage.option import AccountOptions
from isthmus.connectors.secret import resolve, scrub
from isthmus.connectors.storage_transport import storage_transport
from isthmus.errors import IsthmusError
from isthmus.transport.credential import told_of_token

__all__ = ["ServerClock", "code_of", "identity_of", "is_lost", "open_queue", "refusal_of", "text_of"]

# Of a message: it was deleted, or delivered to another receiver since.
_GONE = frozenset({"MessageNotFound", "PopReceiptMismatch"})
_MESSAGE = frozenset(
    {"MessageTooLarge", "RequestBodyTooLarge", "InvalidXmlDocument", "InvalidMarker", "OutOfRangeInput"}
)
_WAIT = frozenset({"QueueBeingDeleted", "QueueDisabled", "ServerBusy", "InternalError", "OperationTimedOut"})
_HINTS = {
    "QueueNotFound": "create it, e.g. by isthmus apply",
    "AuthenticationFailed": "check the key or the SAS, and this machine's clock",
    "AuthorizationPermissionMismatch": "give the identity the role Storage Queue Data Contributor",
    "AuthorizationFailure": "give the identity or the SAS the rights to read, add, update and process messages",
    "ResourceNotFound": "check the account's endpoint",
}


def open_queue(account: AccountOptions, queue: str, timeout_seconds: float, connections: int) -> QueueClient:
    """A client of a queue; blocks where a vault has to be called.

    Raises:
        SecretError: the reference cannot be resolved.
        IsthmusError: the connection string is invalid.
    """
    if account.connection:
        text = resolve(account.connection).reveal()
        try:
            parts = dict(part.partition("=")[::2] for part in text.split(";"))
            endpoint = parts.get("QueueEndpoint") or f"https://{parts.get('AccountName', '')}.queue.core.windows.net"
            transport = storage_transport(endpoint, timeout_seconds, connections)
            return QueueClient.from_connection_string(text, queue, transport=transport, retry_total=0)
        except ValueError:
            raise IsthmusError(f"{account.connection}: not a connection string of a storage account") from None
    transport = storage_transport(account.account_url, timeout_seconds, connections)
    return QueueClient(
        account.account_url, queue, credential=shared_credential(account.identity), transport=transport, retry_total=0
    )


def identity_of(client: QueueClient) -> str:
    """The account that a client reaches."""
    return client.url.partition("://")[2].partition("?")[0].rpartition("/")[0]


def code_of(error: Exception) -> str:
    """The service's own code; empty where there is none."""
    code = getattr(error, "error_code", "") or ""
    return str(getattr(code, "value", code))


def is_lost(error: Exception) -> bool:
    """Whether a message no longer exists, or is locked by another receiver."""
    return isinstance(error, HttpResponseError) and code_of(error) in _GONE


def text_of(queue: str, error: Exception) -> str:
    """The error in the service's words, and a hint."""
    code = code_of(error)
    if isinstance(error, ClientAuthenticationError) and error.status_code is None:
        words = f"no token for the identity: {told_of_token(error)}"
    elif isinstance(error, HttpResponseError):
        status = f"{error.status_code} " if error.status_code else ""
        reason = str(error.message or error.reason or "").partition("\n")[0]
        words = f"{status}{code or error.reason or ''}".strip() + (f": {reason}" if reason and reason != code else "")
    else:
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    hint = _HINTS.get(code)
    return scrub(f"queue '{queue}': {words}" + (f"; {hint}" if hint else ""))


def refusal_of(queue: str, error: Exception) -> Refusal:
    """The refusal that an error means for a message that was to be enqueued."""
    return Refusal(_kind_of(error), code_of(error), text_of(queue, error))


def _kind_of(error: Exception) -> RefusalKind:
    if isinstance(error, ClientAuthenticationError) and error.status_code is None:
        return RefusalKind.UNKNOWN  # the token service gave none: the queue service was not called
    if isinstance(error, ClientAuthenticationError | ResourceNotFoundError):
        return RefusalKind.FATAL
    if isinstance(error, HttpResponseError):
        code, status = code_of(error), error.status_code or 0
        if code in _MESSAGE or status == 413:
            return RefusalKind.MESSAGE
        if code in _WAIT or status in (408, 409, 429) or status >= 500:
            return RefusalKind.BLOCKED
        if status in (401, 403, 404):
            return RefusalKind.FATAL
        return RefusalKind.UNCLEAR
    if isinstance(error, AzureError):
        return RefusalKind.UNKNOWN
    return RefusalKind.UNCLEAR


class ServerClock:
    """The service's clock, from its answers, to the second.

    Args:
        wall: wall clock, in seconds.
        monotonic: monotonic seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self.offset_ms: int | None = None

    def observe(self, response: Any) -> None:
        """An answer arrived (`raw_response_hook` of the SDK)."""
        try:
            server_seconds = parsedate_to_datetime(response.http_response.headers["Date"]).timestamp()
        except (KeyError, TypeError, ValueError):
            return
        # A difference of a second or less is within the precision of an answer.
        ahead = server_seconds - self._wall()
        wall = self._wall() if -2.0 < ahead < 1.0 else server_seconds
        self.offset_ms = round((wall - self._monotonic()) * 1000)
