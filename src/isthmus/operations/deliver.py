"""Sends messages one by one and tells of each what became of it.

What it is: a window of deliveries under way, and their outcomes by place. What it is not: a retry.

Invariants:
    I1. A place has None only if the namespace has accepted the message, which it does when it is durable.
    I2. Where not all answers come, those that came are told with the error: what was accepted need not be sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from isthmus.errors import IsthmusError, OutcomeUnknownError
from isthmus.transport import Client, Sender

__all__ = ["UnconfirmedError", "deliver"]

_SILENCE_SECONDS = 60.0


class UnconfirmedError(OutcomeUnknownError):
    """Not all answers came.

    Attributes:
        results: per message None, the refusal, or this error where nothing is known.
    """

    results: Sequence[IsthmusError | None] = ()


def deliver(
    client: Client, sender: Sender, payloads: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None
) -> list[IsthmusError | None]:
    """Send all, wait for all; per message None or the refusal.

    Args:
        client: connected.
        sender: to the target, ready.
        payloads: encoded messages.
        meanwhile: called again and again while the answers are awaited.

    Raises:
        UnconfirmedError: the connection was lost, or nothing was answered for a minute.
    """
    base = sender.sent
    results: list[IsthmusError | None] = [None] * len(payloads)
    unknown = set(range(len(payloads)))

    def unconfirmed(text: str) -> UnconfirmedError:
        error = UnconfirmedError(f"'{sender.path}': {text}")
        error.results = [error if place in unknown else result for place, result in enumerate(results)]
        return error

    done = known = 0
    heard_at = time.monotonic()
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
            heard_at = time.monotonic()
            known += outcome.last - outcome.first + 1
            for ordinal in range(outcome.first, outcome.last + 1):
                results[ordinal - base] = outcome.error
                unknown.discard(ordinal - base)
        if time.monotonic() - heard_at > _SILENCE_SECONDS:
            raise unconfirmed(f"nothing was answered for {_SILENCE_SECONDS:.0f} s")
    return results
