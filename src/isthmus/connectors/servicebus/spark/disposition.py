"""How a disposition is sent to a source.

What it is: the AMQP outcome of a disposition, and the request that settles by lock token over `$management` where there is
no delivering link, or it is lost. What it is not: the decision, which is the sink's, or the account of deliveries (`ledger`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.amqp.performative import Accepted, Error, Modified, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.errors import InvalidArgumentError
from isthmus.transport import Management, Reply

__all__ = ["TOKEN_CHUNK", "outcome_of", "start_settling"]

# Lock tokens in one request.
TOKEN_CHUNK = 400


def start_settling(management: Management, tokens: Sequence[bytes], state: Any) -> Reply:
    """Queues the request that settles messages by their lock tokens, `TOKEN_CHUNK` at most.

    The service has no release by lock token. Released messages are abandoned: they are available again at once, as by
    `Released` on the link, but their delivery count rises by one, as it does when the lock expires.

    Raises:
        InvalidArgumentError: `state` is not an outcome.
    """
    if state is None or isinstance(state, Accepted):
        return management.start_disposition("completed", tokens)
    if isinstance(state, Rejected):
        info = (state.error.info if state.error is not None else None) or {}
        reason, description = info.get("DeadLetterReason"), info.get("DeadLetterErrorDescription")
        return management.start_disposition("suspended", tokens, reason=reason, description=description)
    if isinstance(state, Modified):
        return management.start_disposition("defered" if state.undeliverable_here else "abandoned", tokens)
    if isinstance(state, Released):
        return management.start_disposition("abandoned", tokens)
    raise InvalidArgumentError(
        f"{type(state).__name__} is not an outcome; accepted, rejected, released and modified are"
    )


def outcome_of(disposition: str, reason: str | None, description: str | None) -> Any:
    """The AMQP outcome of a disposition (docs/explanation/protocol.md, Settlement)."""
    if disposition == "dead-letter":
        info: dict[Any, Any] = {Symbol("DeadLetterReason"): (reason or "")[:4096]}
        if description:
            info[Symbol("DeadLetterErrorDescription")] = description[:4096]
        return Rejected(Error(Symbol("com.microsoft:dead-letter"), None, info))
    if disposition == "defer":
        return Modified(True, True)
    if disposition == "abandon":
        return Modified(True, False)
    if disposition == "release":
        return Released()
    return None
