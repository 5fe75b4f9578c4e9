"""Signatures of requests.

What it is: making and checking them, pure. What it is not: the reading of the secret (`isthmus.connectors.secret`).
Specification: Standard Webhooks 1.0 (`webhook-id`, `webhook-timestamp`, `webhook-signature`); GitHub, "Validating webhook deliveries"
(`X-Hub-Signature-256`).

Invariants:
    I1. Signatures and tokens are compared in constant time.
    I2. A request whose timestamp is further away than `TOLERANCE_SECONDS` is refused: it may be replayed by an attacker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

__all__ = ["TOLERANCE_SECONDS", "bearer_fault", "signature_fault", "signed"]

TOLERANCE_SECONDS = 300
_PREFIX = "whsec_"
_ID, _TIME, _SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_HUB = "x-hub-signature-256"


def signed(scheme: str, secret: str, event_id: str, body: bytes, now: int) -> dict[str, str]:
    """The headers of a signed request.

    Args:
        scheme: `standard` or `sha256`.
        secret: shared with the receiver.
        event_id: the same each time that the event is sent.
        body: of the request.
        now: wall seconds.
    """
    if scheme == "sha256":
        return {_HUB: f"sha256={_hub(secret, body)}"}
    return {_ID: event_id, _TIME: str(now), _SIGNATURE: f"v1,{_standard(secret, event_id, str(now), body)}"}


def signature_fault(scheme: str, secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """The fault of a request's signature; empty where it is valid. Names of headers are in lower case."""
    if scheme == "sha256":
        given = headers.get(_HUB, "")
        is_right = hmac.compare_digest(_bytes(given), f"sha256={_hub(secret, body)}".encode())
        return "" if is_right else f"{_HUB} is missing or wrong"
    event_id, moment, given = headers.get(_ID, ""), headers.get(_TIME, ""), headers.get(_SIGNATURE, "")
    if not (moment.isascii() and moment.isdigit() and len(moment) < 12):
        return f"{_TIME} is missing or malformed"
    if abs(int(moment) - now) > TOLERANCE_SECONDS:
        return f"{_TIME} is more than {TOLERANCE_SECONDS} s away from the time here"
    expected = f"v1,{_standard(secret, event_id, moment, body)}".encode()
    # A request has several signatures while a secret is replaced.
    found = [hmac.compare_digest(_bytes(each), expected) for each in given.split(" ")]
    return "" if any(found) else f"{_SIGNATURE} is missing or wrong"


def bearer_fault(secret: str, headers: Mapping[str, str]) -> str:
    """The fault of a request's token; empty where it is valid."""
    given = headers.get("authorization", "")
    is_right = hmac.compare_digest(_bytes(given), f"Bearer {secret}".encode())
    return "" if is_right else "the bearer token is missing or wrong"


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except ValueError:  # not base64, or not ASCII
            pass
    return secret.encode()


def _standard(secret: str, event_id: str, moment: str, body: bytes) -> str:
    content = _bytes(f"{event_id}.{moment}.") + body
    return base64.b64encode(hmac.new(_key(secret), content, hashlib.sha256).digest()).decode()


def _bytes(text: str) -> bytes:
    """The bytes of a header, as they were received."""
    return text.encode(errors="surrogateescape")


def _hub(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
