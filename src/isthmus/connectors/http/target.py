"""An address as a target: the requests of `isthmus.connectors.request`.

What it is: one POST for each message, and the meaning of its status. What it is not: when it is repeated.
Specification: RFC 9110, 15 (status codes) and 10.2.3 (Retry-After).

| status | meaning |
| --- | --- |
| 2xx | the receiver has it |
| 408, 425, 429, 5xx | not now: the message waits, as long as Retry-After says |
| 401, 403, 404, 405, 407, 410, 3xx | the address or the secret is wrong: the route stops with an error, nothing is set aside |
| 413 | this message is too large |
| other 4xx | this message is refused |
| no answer | the outcome is unknown: the request is repeated, with the same id |

Invariants:
    I1. A request of the same message has the same id each time.
    I2. No text contains the secret.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.amqp.codec import CodecError
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.http.client import Answer, HttpClient, retry_after
from isthmus.connectors.http.mapping import HeadersTooLargeError, to_request
from isthmus.connectors.http.option import TargetOptions
from isthmus.connectors.http.signature import signed
from isthmus.connectors.request.requester import BusyError, RequestError
from isthmus.connectors.secret import Secret, resolve, scrub
from isthmus.errors import IsthmusError

__all__ = ["HttpRequester", "judge", "network_refusal"]

_BUSY = frozenset({408, 425, 429})
_FATAL = frozenset({401, 403, 404, 405, 407, 410})
_HINTS = {
    401: "check auth and secret",
    403: "check auth and secret, and the rights that they give",
    404: "check url and entity",
    405: "check url and entity: POST is not accepted there",
    410: "the receiver accepts no more messages",
}


def network_refusal(what: str, error: OSError) -> Refusal:
    """The meaning of a request without an answer."""
    return Refusal(RefusalKind.UNKNOWN, "", f"{what}: {scrub(str(error)) or type(error).__name__}")


def judge(what: str, answer: Answer, secret: str = "") -> Refusal | None:
    """The meaning of an answer for the message; None: the receiver has it.

    Args:
        what: the request, for texts.
        answer: its answer.
        secret: the secret that was sent; a server may repeat it in its answer.

    Raises:
        BusyError: it is refused for now.
        RequestError: it is refused.
    """
    status = answer.status
    if 200 <= status < 300:
        return None
    hint = _HINTS.get(status, "the server redirects to another address; write that one" if 300 <= status < 400 else "")
    said = answer.text(secret)
    reason = answer.reason.replace(secret, "***") if secret else answer.reason
    words = scrub(f"{what}: {status} {reason}" + (f": {said}" if said else "") + (f"; {hint}" if hint else ""))
    if status in _BUSY or status >= 500:
        raise BusyError(Refusal(RefusalKind.BLOCKED, str(status), words), retry_after(answer.headers))
    if status in _FATAL or status < 400:
        raise RequestError(Refusal(RefusalKind.FATAL, str(status), words))
    return Refusal(RefusalKind.MESSAGE, str(status), words, "MessageTooLarge" if status == 413 else "RefusedByTarget")


class HttpRequester:
    """Posts messages to one address.

    Args:
        options: of the target.
        wall: wall clock, in seconds.
    """

    batch = 1
    batch_bytes = 1

    def __init__(self, options: TargetOptions, wall: Callable[[], float] = time.time) -> None:
        self.entity = options.entity
        self._options = options
        self._wall = wall
        self._client: HttpClient | None = None
        self._secret: Secret | None = None
        self._is_closed = False

    def open(self) -> str:
        """Connects; returns the server's address.

        Raises:
            RequestError: it cannot connect.
        """
        options = self._options
        try:
            self._secret = resolve(options.secret) if options.secret else None
            client = HttpClient(
                options.url,
                options.timeout_seconds,
                ca_file=options.ca_file,
                certificate_file=options.client_certificate_file,
                key_file=options.client_key_file,
            )
        except IsthmusError as error:
            kind = RefusalKind.UNKNOWN if error.retryable else RefusalKind.FATAL
            raise RequestError(Refusal(kind, error.code, str(error))) from None
        except OSError as error:
            raise RequestError(Refusal(RefusalKind.FATAL, "", f"ca_file or client_certificate_file: {error}")) from None
        self._client = client
        if self._is_closed:
            client.close()
        try:
            client.connect()
        except OSError as error:
            raise RequestError(network_refusal(client.address, error)) from None
        return client.address

    def send(self, payloads: Sequence[bytes]) -> Sequence[Refusal | None]:
        """Posts messages.

        Raises:
            BusyError: they are refused for now.
            RequestError: the outcome is unknown, or they are refused.
        """
        return [self._post(payload) for payload in payloads]

    def _post(self, payload: bytes) -> Refusal | None:
        options, client = self._options, self._client
        assert client is not None
        try:
            request = to_request(payload, options.mode, options.copying.origin)
        except (CodecError, HeadersTooLargeError) as error:
            return Refusal(RefusalKind.MESSAGE, "", f"'{options.entity}': {error}", "Malformed")
        headers = {"user-agent": "isthmus", **request.headers}
        if self._secret is not None and options.auth == "bearer":
            headers["authorization"] = f"Bearer {self._secret.reveal()}"
        elif self._secret is not None:
            moment = int(self._wall())
            headers |= signed(options.signature, self._secret.reveal(), request.event_id, request.body, moment)
        headers.setdefault("webhook-id", request.event_id)
        what = f"POST {client.address}{options.path}"
        try:
            answer = client.request("POST", options.path or "/", headers, request.body)
        except OSError as error:
            raise RequestError(network_refusal(what, error)) from None
        except ValueError:  # its text would contain the header's value
            words = (
                f"{what}: a header cannot be sent; check whether {options.secret or 'the path'} has invalid characters"
            )
            raise RequestError(Refusal(RefusalKind.FATAL, "", words)) from None
        return judge(what, answer, self._secret.reveal() if self._secret is not None else "")

    def close(self) -> None:
        """Closes it."""
        self._is_closed = True
        if self._client is not None:
            self._client.close()
