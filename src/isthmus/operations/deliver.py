"""Sends messages one by one and returns the outcome of each.

What it is: a window of deliveries in flight, and their outcomes by index. What it is not: a retry.

Invariants:
    I1. An index has None only if the namespace has accepted the message, which it does when it is durable.
    I2. If answers are missing, the error has those that arrived: accepted messages need not be sent again.
    I3. Messages that the network carries slowly are waited for while their bytes arrive, and other requests on the connection wait behind few of them.
    I4. A message that is larger than the link's limit is refused unsent: a namespace would end the link, and with it what is behind the message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from isthmus.connectors.transit import Transit
from isthmus.errors import IsthmusError, LockLostError, MessageTooLargeError, OutcomeUnknownError
from isthmus.operations.window import Pace
from isthmus.transport import Client, Sender

__all__ = ["UnconfirmedError", "deliver"]

_SILENCE_SECONDS = 60.0
_AT_ONCE = 256
_WAIT_SECONDS = 0.5
# While it waits for bytes to arrive, of which nothing tells.
_LOOK_SECONDS = 0.1
_PACES: WeakKeyDictionary[Sender, Pace] = WeakKeyDictionary()  # of the networks to their namespaces


class UnconfirmedError(OutcomeUnknownError):
    """Answers are missing.

    Attributes:
        results: per message None, the refusal, or this error if the outcome is unknown.
        sent: how many of them were sent or refused unsent; those behind were certainly not accepted.
    """

    results: Sequence[IsthmusError | None] = ()
    sent: int = 1 << 62


def deliver(
    client: Client, sender: Sender, payloads: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None
) -> list[IsthmusError | None]:
    """Send all, wait for all; returns per message None or the refusal.

    Args:
        client: connected.
        sender: to the target, ready.
        payloads: encoded messages.
        meanwhile: called repeatedly while answers are awaited; an error of it, but for a lost lock, ends the waiting.

    Raises:
        UnconfirmedError: the connection was lost, or no answer arrived for a minute, nor bytes of the messages at the namespace.
    """
    limit = sender.max_message_bytes
    too_large = {index for index, payload in enumerate(payloads) if 0 < limit < len(payload)}
    if not too_large:
        return _deliver(client, sender, payloads, meanwhile)
    rest = [payload for index, payload in enumerate(payloads) if index not in too_large]

    def whole(found: Sequence[IsthmusError | None]) -> list[IsthmusError | None]:
        others = iter(found)
        return [
            MessageTooLargeError(len(payload), limit) if index in too_large else next(others)
            for index, payload in enumerate(payloads)
        ]

    try:
        return whole(_deliver(client, sender, rest, meanwhile))
    except UnconfirmedError as error:
        error.results, error.sent = whole(error.results), error.sent + len(too_large)
        raise


def _deliver(
    client: Client, sender: Sender, payloads: Sequence[bytes], meanwhile: Callable[[], None]
) -> list[IsthmusError | None]:
    base = sender.sent
    results: list[IsthmusError | None] = [None] * len(payloads)
    unknown = set(range(len(payloads)))

    def unconfirmed(text: str) -> UnconfirmedError:
        error = UnconfirmedError(f"'{sender.path}': {text}")
        error.results = [error if index in unknown else result for index, result in enumerate(results)]
        error.sent = done
        return error

    done = known = 0
    last_event_at = time.monotonic()
    pace, transit = _PACES.setdefault(sender, Pace()), Transit(client)
    while known < len(payloads):
        if sender.error is not None:
            raise unconfirmed(f"{done - known} messages were not confirmed: {sender.error}") from sender.error
        most = min(sender.sendable, len(payloads) - done, _AT_ONCE)
        queued = client.queued_bytes - client.arrived_bytes if most > 0 else 0
        count = pace.fitting(payloads[done : done + most], queued, time.monotonic()) if most > 0 else 0
        if count > 0:
            sender.send(payloads[done : done + count])
            done += count
            client.service()
        else:
            client.wait(_LOOK_SECONDS if most > 0 else _WAIT_SECONDS)
            try:
                meanwhile()
            except LockLostError:
                raise
            except IsthmusError as error:
                raise unconfirmed(f"{done - known} messages were not confirmed: {error}") from error
        while sender.outcomes:
            outcome = sender.outcomes.popleft()
            last_event_at = time.monotonic()
            known += outcome.last - outcome.first + 1
            for ordinal in range(outcome.first, outcome.last + 1):
                results[ordinal - base] = outcome.error
                unknown.discard(ordinal - base)
        now = time.monotonic()
        if transit.progresses(now, last_event_at):
            last_event_at = now
        if now - last_event_at > _SILENCE_SECONDS:
            raise unconfirmed(f"no answer arrived for {_SILENCE_SECONDS:.0f} s")
    return results
