"""A queue as a target: the requests of `isthmus.connectors.request`.

What it is: the enqueueing of messages with the SDK, one request each. What it is not: the decision when, and the handling of a refusal.
Specification: Microsoft Learn, "Put Message" (Queue Storage REST API).

Invariants:
    I1. A message whose text in the queue exceeds 64 KiB is refused without a request.
    I2. A message without TimeToLive never expires, unless the options say otherwise: the service's own default is 7 days.
"""

from __future__ import annotations

from collections.abc import Sequence

from azure.core.exceptions import AzureError
from azure.storage.queue import QueueClient

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.queuestorage.client import identity_of, open_queue, refusal_of
from isthmus.connectors.queuestorage.mapping import LIMIT_BYTES, TextError, to_text
from isthmus.connectors.queuestorage.option import TargetOptions
from isthmus.connectors.request.requester import BusyError, RequestError
from isthmus.errors import IsthmusError

__all__ = ["QueueRequester"]

_FOR_EVER = -1


class QueueRequester:
    """Enqueues messages in one queue.

    Args:
        options: of the target.
    """

    batch = 1
    batch_bytes = 1

    def __init__(self, options: TargetOptions) -> None:
        self.entity = options.entity
        self._options = options
        self._client: QueueClient | None = None

    def open(self) -> str:
        """Checks that the queue exists; returns the account.

        Raises:
            RequestError: it does not exist, or cannot be reached.
        """
        options = self._options
        try:
            client = open_queue(options.account, self.entity, options.timeout_seconds, options.parallel + 1)
        except IsthmusError as error:
            kind = RefusalKind.UNKNOWN if error.retryable else RefusalKind.FATAL
            raise RequestError(Refusal(kind, error.code, str(error))) from None
        self._client = client
        try:
            client.get_queue_properties()
        except AzureError as error:
            raise RequestError(refusal_of(self.entity, error)) from None
        return identity_of(client)

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        """Enqueues messages.

        Raises:
            BusyError: the service accepts nothing for now.
            RequestError: the outcome is unknown, or the queue was deleted.
        """
        return [self._put(payload) for payload in payloads]

    def _put(self, payload: bytes) -> Refusal | None:
        options = self._options
        try:
            text = to_text(payload, options.form, options.encoding, options.copying.origin)
            ttl_ms = section.decode_header(payload, section.locate(payload).header).ttl_ms
        except (CodecError, TextError) as error:
            return Refusal(RefusalKind.MESSAGE, "", f"queue '{self.entity}': {error}", "Malformed")
        size = len(text.encode())
        if size > LIMIT_BYTES:
            words = f"queue '{self.entity}': the message has {size} bytes as {options.encoding}; a queue accepts {LIMIT_BYTES}"
            return Refusal(RefusalKind.MESSAGE, "MessageTooLarge", words, "MessageTooLarge")
        seconds = max(1, -(-ttl_ms // 1000)) if ttl_ms else options.time_to_live_seconds or _FOR_EVER
        client = self._client
        assert client is not None
        try:
            client.send_message(text, time_to_live=seconds)
        except AzureError as error:
            refusal = refusal_of(self.entity, error)
            if refusal.kind is RefusalKind.BLOCKED:
                raise BusyError(refusal, _retry_after(error)) from None
            if refusal.kind in (RefusalKind.FATAL, RefusalKind.UNKNOWN):
                raise RequestError(refusal) from None
            return refusal
        return None

    def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()


def _retry_after(error: AzureError) -> float:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return float(text) if text.isdigit() else 0.0
