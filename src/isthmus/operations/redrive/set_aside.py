"""The contents of a queue of messages that were set aside, and those of them that an operator selects.

What it is: a count of a queue of `isthmus.topology.redrive` by peeking, by reason. What it is not: the sending
(`isthmus.operations.redrive.redrive`).

Invariants:
    I1. The reason of a message decides whether it is selected (`is_retried`), unless the operator names reasons: one that killed
        workers, and one that would return to a namespace it has visited, is sent only on request.
    I2. Only active messages are selected: a deferred or scheduled one is not delivered, and would use up a count for nothing.
    I3. An expired message is selected only on request; in the parking queue each is, with a new time to live.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.entities.queue.run import RunSet
from isthmus.errors import EntityNotFoundError
from isthmus.message import name as names
from isthmus.operations.message import STATES, sequence_of, state_of
from isthmus.operations.peek import Progress, messages
from isthmus.operations.redrive.diverted import diversion_of
from isthmus.topology.redrive import DEAD_LETTER_SUFFIX, Redrive
from isthmus.transport import Client

__all__ = ["Choice", "SetAside", "Whose", "count_queue", "is_retried", "whose"]

_NO_TTL = 0xFFFFFFFF
_EXPIRED = "TTLExpiredException"
_RETRIED = frozenset(
    {
        "RefusedByTarget",
        "MessageTooLarge",
        "MaxDeliveryCountExceeded",
        "StepFailed",
        "ValidationFailed",
        "DecryptionFailed",
        "QuotaExceeded",
        "MessagingEntityDisabled",
    }
)


def is_retried(reason: str) -> bool:
    """Whether a dead letter with this reason is sent by default: its cause is one that an operator can remove."""
    return reason in _RETRIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The selection of an operator.

    Attributes:
        reasons: values of DeadLetterReason, in any case; empty: those of `is_retried`, and all parked or diverted messages.
        count: so many at most; 0: all.
        expired: also expired ones; their copies have no time to live.
    """

    reasons: frozenset[str] = frozenset()
    count: int = 0
    expired: bool = False

    def takes(self, reason: str, *, takes_all: bool) -> bool:
        """Whether messages with this reason are selected; `takes_all`: in a queue from which all are, if no reason is named."""
        if self.reasons:
            return reason.lower() in {each.lower() for each in self.reasons}
        return takes_all or is_retried(reason) or (self.expired and reason == _EXPIRED)


@dataclass(slots=True)
class SetAside:
    """The contents of a queue.

    Attributes:
        reasons: how many messages there are by DeadLetterReason; "" for those without.
        chosen: sequence numbers of the selected ones.
        expired: how many were not chosen only because they are expired.
        deferred: how many were not chosen only because they are deferred: they are not delivered.
        scheduled: likewise, because they are scheduled.
        foreign: of a queue of diverted messages, how many no route of the file has diverted there, or have lost their provenance.
        dead_lettered: of a queue of diverted messages, how many are in its own dead-letter queue, e.g. since their receiver has
            received them too often. None is selected: it may be there on purpose.
        origins: of chosen diverted messages, the identities of the namespaces where their routes received them.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    chosen: RunSet = field(default_factory=RunSet)
    expired: int = 0
    deferred: int = 0
    scheduled: int = 0
    foreign: int = 0
    dead_lettered: int = 0
    origins: set[str] = field(default_factory=set)


def count_queue(client: Client, each: Redrive, choice: Choice, *, progress: Progress = lambda _: None) -> SetAside:
    """Count what is in a queue, by peeking.

    Args:
        client: connected, authorised for the queue.
        each: the queue.
        choice: the selection.
        progress: called with the number of messages peeked since the last call.

    Raises:
        IsthmusError: the namespace refused or is unreachable.
    """
    found = SetAside()
    now_ms = time.time_ns() // 1_000_000
    count = 0
    takes_all = each.is_parking or each.is_diverted
    for payload in messages(client, each.source.entity):
        progress(1)
        origin = None
        if each.is_diverted:
            owner = whose(payload, each)
            if not owner.is_known:
                found.foreign += 1
            if not owner.is_own:
                continue
            origin = owner.namespace
        reason = _reason_of(payload, names.WHY_REASON if each.is_diverted else names.DEAD_LETTER_REASON)
        found.reasons[reason] += 1
        if (choice.count and count >= choice.count) or not choice.takes(reason, takes_all=takes_all):
            continue
        state = STATES[state_of(payload)]
        if state != "active":
            found.deferred += state == "deferred"
            found.scheduled += state == "scheduled"
            continue
        if not (choice.expired or each.is_parking) and _is_over(payload, now_ms):
            found.expired += 1
            continue
        sequence = sequence_of(payload)
        found.chosen.add(sequence, sequence)
        found.origins |= set() if origin is None else {origin}
        count += 1
    if each.is_diverted:
        with suppress(EntityNotFoundError):
            dead = messages(client, each.source.entity + DEAD_LETTER_SUFFIX)
            found.dead_lettered = sum(whose(payload, each).is_own for payload in dead)
    return found


class Whose(NamedTuple):
    """Of a diverted message: whether a route of the file has diverted it, whether one of this queue's, that route, and its namespace of origin."""

    is_known: bool
    is_own: bool
    route: str = ""
    namespace: str = ""


def whose(payload: bytes, each: Redrive) -> Whose:
    """The route and the origin of a message in a queue of diverted messages."""
    try:
        diversion = diversion_of(payload)
    except CodecError:
        diversion = None
    if diversion is None or diversion.route not in each.known:
        return Whose(is_known=False, is_own=False)
    entered = each.route.source.alias, each.route.entered.lower()
    is_own = diversion.route in {route.name for route in each.routes}
    # A route of this name read another entity once: no present route makes the copy of such a message.
    fits = (diversion.hop.alias, diversion.hop.entity.lower()) == entered
    return Whose(fits or not is_own, is_own and fits, diversion.route, diversion.hop.namespace)


def _reason_of(payload: bytes, name: str) -> str:
    try:
        found = section.map_value(payload, section.locate(payload).application_properties, name)
    except CodecError:  # a message whose properties cannot be read is dead-lettered without a reason
        return ""
    return "" if found is None else str(found)


def _is_over(payload: bytes, now_ms: int) -> bool:
    sections = section.locate(payload)
    ttl_ms = section.decode_header(payload, sections.header).ttl_ms or 0
    if not 0 < ttl_ms < _NO_TTL:
        return False
    enqueued_ms = section.map_value(payload, sections.message_annotations, names.ENQUEUED_TIME)
    return isinstance(enqueued_ms, int) and enqueued_ms + ttl_ms <= now_ms
