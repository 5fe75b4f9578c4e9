"""The checks of a listener on a request: decided without I/O except the writing to disk.

What it is: the checks of one path, and the answers. What it is not: the server (`listener`), or the spool's writing (`inbox`).
Specification: CloudEvents, "HTTP 1.1 Web Hooks for Event Delivery", 4 (abuse protection); Microsoft Learn, "Webhook event delivery"
(the validation of a subscription).

Invariants:
    I1. A request is answered 2xx only after all of its events are on disk.
    I2. No event of a request is parsed before its signature or token is verified. The confirmation of a subscription needs no proof: it
        is an echo, and the events of that subscription need one.
    I3. An answer to a wrong proof says only that it is wrong.
    I4. A signature may cover the body as sent or the decompressed body: the signing and the compressing component may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from isthmus.amqp.codec import CodecError
from isthmus.connectors.http.signature import bearer_fault, signature_fault
from isthmus.connectors.listen.coding import CODINGS, CodingError, decoded
from isthmus.connectors.listen.option import ListenOptions

__all__ = ["Door", "Reply", "Store"]

# Where the spool is full, or cannot be written.
RETRY_SECONDS = 10
_VALIDATION = "SubscriptionValidation"

Read = Callable[[Mapping[str, str], bytes], Sequence[bytes]]


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = {}


class Store(Protocol):
    """The writer of messages."""

    @property
    def is_full(self) -> bool:
        """Whether no more messages are accepted for now."""
        ...

    def put(self, messages: Sequence[bytes]) -> Future[None]:
        """Writes messages; the future is done once they are on disk."""
        ...


class Door:
    """One path of a listener.

    Args:
        options: of the source.
        secret: the present secret; empty: none.
        read: parses a request into messages; raises ValueError or CodecError for an invalid one.
        store: writes the messages.
        wall: wall clock, in seconds.
        handshakes: whether Event Grid's subscriptions are confirmed.
    """

    def __init__(
        self,
        options: ListenOptions,
        *,
        secret: Callable[[], str],
        read: Read,
        store: Store,
        wall: Callable[[], float],
        handshakes: bool = False,
    ) -> None:
        self.max_body_bytes = options.max_body_bytes
        self._options = options
        self._secret = secret
        self._read = read
        self._store = store
        self._wall = wall
        self._handshakes = handshakes

    def options_reply(self, headers: Mapping[str, str]) -> Reply:
        """The answer to OPTIONS: any sender that authenticates each request may send."""
        origin = headers.get("webhook-request-origin", "")
        if not origin:
            return Reply(405, "POST is accepted here", {"Allow": "POST, OPTIONS"})
        return Reply(200, "", {"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*", "Allow": "POST, OPTIONS"})

    def post(self, headers: Mapping[str, str], sent: bytes) -> Reply | Future[None]:
        """The answer to POST of a body, as it was sent; a future: 200 once it is done, 503 where it fails."""
        try:
            body = decoded(headers.get("content-encoding", ""), sent, self.max_body_bytes)
        except CodingError as error:
            return Reply(error.status, str(error), {"Accept-Encoding": CODINGS} if error.status == 415 else {})
        if self._handshakes and headers.get("aeg-event-type", "") == _VALIDATION:
            return _validated(body)
        fault = self._fault(headers, sent)
        if fault and body is not sent:
            fault = self._fault(headers, body)
        if fault:
            return Reply(401, fault)
        if self._store.is_full:
            return Reply(503, "the spool is full", {"Retry-After": str(RETRY_SECONDS)})
        try:
            messages = self._read(headers, body)
        except (ValueError, CodecError) as error:
            return Reply(400, _shown(error))
        return self._store.put(messages)

    def _fault(self, headers: Mapping[str, str], body: bytes) -> str:
        if self._options.auth == "bearer":
            return bearer_fault(self._secret(), headers)
        if self._options.auth == "hmac":
            return signature_fault(self._options.signature, self._secret(), headers, body, self._wall())
        return ""


def _shown(error: Exception) -> str:
    """The text of an error, which may quote characters that an answer cannot contain."""
    return str(error).encode(errors="backslashreplace").decode()


def _validated(body: bytes) -> Reply:
    try:
        events = json.loads(body)
        event = events[0] if isinstance(events, list) else events
        code = event["data"]["validationCode"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return Reply(400, "a validation event has data.validationCode")
    return Reply(200, json.dumps({"validationResponse": str(code)}), {"Content-Type": "application/json"})
