"""Sends messages one by one and returns the outcome of each.

What it is: a window of deliveries in flight, and their outcomes by index. What it is not: a retry.

Invariants:
    I1. An index has None only if the namespace has accepted the message, which it does when it is durable.
    I2. If answers are missing, the error has those that arrived: accepted messages need not be sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.errors import IsthmusError, OutcomeUnknownError
from isthmus.transport import Client, Sender

__all__ = ["UnconfirmedError", "deliver"]

_SILENCE_SECONDS = 60.0


class UnconfirmedError(OutcomeUnknownError):
    """Answers are missing.

    Attributes:
        results: per message None, the refusal, or this error if the outcome is unknown.
    """

    results: Sequence[IsthmusError | None] = ()


def deliver(
    client: Client, sender: Sender, payloads: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None
) -> list[IsthmusError | None]:
    """Send all, wait for all; returns per message None or the refusal.

    Args:
        client: connected.
        sender: to the target, ready.
        payloads: encoded messages.
        meanwhile: called repeatedly while answers are awaited.

    Raises:
        UnconfirmedError: the connection was lost, or no answer arrived for a minute.
    """
    base = sender.sent
    results: list[IsthmusError | None] = [None] * len(payloads)
    unknown = set(range(len(payloads)))

    def unconfirmed(text: str) -> UnconfirmedError:
        error = UnconfirmedError(f"'{sender.path}': {text}")
        error.results = [error if index in unknown else result for index, result in enumerate(results)]
        return error

    done = known = 0
    last_event_at = time.monotonic()
    while known < len(payloads):
        if sender.error is not None:
            raise unconfirmed(f"{len(payloads) - known} messages were not confirmed: {sender.error}") from sender.error
        count = min(sender.sendable, len(payloads) - done, 256)
        if count > 0:
            sender.send(payloads[done : done + count])
            done += count
            client.service()
        else:
            client.wait(0.5)
            meanwhile()
        while sender.outcomes:
            outcome = sender.outcomes.popleft()
            last_event_at = time.monotonic()
            known += outcome.last - outcome.first + 1
            for ordinal in range(outcome.first, outcome.last + 1):
                results[ordinal - base] = outcome.error
                unknown.discard(ordinal - base)
        if time.monotonic() - last_event_at > _SILENCE_SECONDS:
            raise unconfirmed(f"no answer arrived for {_SILENCE_SECONDS:.0f} s")
    return results
