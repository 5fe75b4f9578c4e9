"""The settlement that a client's delivery state requests.

What it is: the call on the queue for a state, and the state that answers it, pure. What it is not: the settlement itself (`settlement`).
Spec: OASIS AMQP 1.0 3.4; docs/explanation/protocol.md, Settlement.

Invariants:
    I1. A state that is not an outcome requests nothing.
    I2. A delivery that a client settled without a valid outcome gets its source's default outcome, or is released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source
from isthmus.broker.link.request import text_map
from isthmus.entities.port import MessageSource

__all__ = ["Verdict", "default_verdict", "verdict_of"]


class Verdict(NamedTuple):
    """The meaning of a delivery state: the call on the queue, the state to echo, and whether that may be sent at once."""

    settle: Callable[..., Sequence[bool]]
    echo: Any
    at_once: bool = False


def verdict_of(state: Any, queue: MessageSource) -> Verdict | None:
    """The verdict of a state; None for one that is not an outcome."""
    if type(state) is Accepted:
        return Verdict(queue.complete, state)
    read = _OTHERS.get(type(state))
    return None if read is None else read(state, queue)


def default_verdict(source: Any, queue: MessageSource) -> Verdict:
    """The verdict of a delivery that the client settled without a valid outcome; `source` is the link's."""
    state = source.default_outcome if type(source) is Source else None
    # A default outcome of another kind counts as none, as in a disposition.
    return verdict_of(state, queue) or _released(Released(), queue)


def _released(state: Released, queue: MessageSource) -> Verdict:
    return Verdict(lambda tokens, *_: queue.release(tokens), Released(), at_once=True)


def _modified(state: Modified, queue: MessageSource) -> Verdict:
    properties = text_map(state.message_annotations) or None
    settle = queue.defer if state.undeliverable_here else queue.abandon
    return Verdict(
        lambda tokens, done, bad: settle(tokens, properties, done, bad),
        Modified(state.delivery_failed, state.undeliverable_here),
    )


def _rejected(state: Rejected, queue: MessageSource) -> Verdict:
    info = text_map(state.error.info if state.error is not None else None)
    reason = info.pop("DeadLetterReason", None)
    description = info.pop("DeadLetterErrorDescription", None)
    if state.error is not None and state.error.condition != "com.microsoft:dead-letter":
        reason = reason if reason is not None else str(state.error.condition)
        description = description if description is not None else state.error.description
    settle = partial(queue.dead_letter, reason=reason, description=description, properties=info or None)
    return Verdict(lambda tokens, done, bad: settle(tokens, on_durable=done, on_failed=bad), Rejected())


_OTHERS: Mapping[type, Callable[[Any, MessageSource], Verdict]] = {
    Released: _released,
    Modified: _modified,
    Rejected: _rejected,
}
