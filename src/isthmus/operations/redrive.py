"""Messages that were set aside, sent on.

What it is: a look that counts what is in a queue of `isthmus.topology.redrive` by reason, and the sending of what is chosen: through
the route's steps, as the route's own copies, to its target; each leaves the queue once the target has acknowledged its copy. What it is
not: a route; what the target refuses stays where it is.

Invariants:
    I1. A message leaves its queue only after its copy is acknowledged, or a step of its route has dropped it. Killed in between, it is sent
        again by the next call, with the same duplicate key.
    I2. What a message was set aside for decides whether it is sent (`is_retried`), unless the operator names reasons: one that killed
        workers, and one that would return to where it has been, is not sent unasked.
    I3. A message whose time to live is over is not sent unasked; from the parking queue each is sent with a new one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.entities.queue.run import RunSet
from isthmus.entities.record.amend import with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.errors import IsthmusError
from isthmus.message import name as names
from isthmus.operations.copy_target import CopyTarget, Sent
from isthmus.operations.look import Progress, messages
from isthmus.operations.message import sequence_of
from isthmus.operations.sweep import Taken, sweep
from isthmus.replication.reach import Reach
from isthmus.replication.route_spec import route_spec
from isthmus.replication.step.base import NamedStep, guarded
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.opener import open_message_steps
from isthmus.topology.model import Federation
from isthmus.topology.redrive import Redrive
from isthmus.transport import Client

__all__ = ["Choice", "Redriven", "SetAside", "is_retried", "look", "redrive"]

_AT_ONCE = 100
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
    """Whether a dead letter with this reason is sent unasked: a cause that an operator can remove."""
    return reason in _RETRIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which messages an operator means.

    Attributes:
        reasons: values of DeadLetterReason, in any case; empty: those that `is_retried` says, and all of a parking queue.
        count: so many at most; 0: all.
        expired: also those whose time to live is over; their copies have none.
    """

    reasons: frozenset[str] = frozenset()
    count: int = 0
    expired: bool = False

    def takes(self, reason: str, *, is_parking: bool) -> bool:
        """Whether messages with this reason are meant."""
        if self.reasons:
            return reason.lower() in {each.lower() for each in self.reasons}
        return is_parking or is_retried(reason) or (self.expired and reason == _EXPIRED)


@dataclass(slots=True)
class SetAside:
    """What is in a queue.

    Attributes:
        reasons: how many messages there are by DeadLetterReason; "" for those without.
        chosen: sequence numbers of those that are meant.
        expired: how many were not chosen only because their time to live is over.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    chosen: RunSet = field(default_factory=RunSet)
    expired: int = 0


@dataclass(slots=True)
class Redriven:
    """What was done.

    Attributes:
        sent: acknowledged by the target, and removed from the queue.
        dropped: a step of the route drops them; removed from the queue.
        refused: by the target, by a step, or because they would return; they stay where they are.
        left: locked elsewhere or gone meanwhile, or the target was gone before they were sent.
        first_refusal: why, of the first one; empty if none was.
        gone: why nothing more was sent; empty where all was tried.
    """

    sent: int = 0
    dropped: int = 0
    refused: int = 0
    left: int = 0
    first_refusal: str = ""
    gone: str = ""


def look(client: Client, each: Redrive, choice: Choice, *, progress: Progress = lambda _: None) -> SetAside:
    """Count what is in a queue, by peeking.

    Args:
        client: connected, authorised for the queue.
        each: the queue.
        choice: what is meant.
        progress: told how many messages were looked at since the last time.

    Raises:
        IsthmusError: the peer refused or is gone.
    """
    found = SetAside()
    now_ms = time.time_ns() // 1_000_000
    count = 0
    for payload in messages(client, each.source.entity):
        progress(1)
        reason = _reason_of(payload)
        found.reasons[reason] += 1
        if (choice.count and count >= choice.count) or not choice.takes(reason, is_parking=each.is_parking):
            continue
        if not (choice.expired or each.is_parking) and _is_over(payload, now_ms):
            found.expired += 1
            continue
        sequence = sequence_of(payload)
        found.chosen.add(sequence, sequence)
        count += 1
    return found


def redrive(
    reach: Reach,
    federation: Federation,
    each: Redrive,
    chosen: RunSet,
    choice: Choice,
    *,
    progress: Progress = lambda _: None,
) -> Redriven:
    """Send what was chosen.

    Args:
        reach: opens connections.
        federation: with absolute paths.
        each: the queue.
        chosen: sequence numbers; used up.
        choice: what was meant.
        progress: told how many messages were dealt with since the last time.

    Raises:
        IsthmusError: a namespace cannot be reached, or refuses; what was not acknowledged is as before.
    """
    spec = route_spec(each.route, federation)
    steps = open_message_steps(each.route.options.steps)
    client = reach.open(each.source)
    try:
        with CopyTarget(spec, client.namespace_id) as target:
            pass_ = _Pass(target, steps, _cleaned(each, choice), chosen, progress)
            return pass_.carry(client, each.source.entity)
    finally:
        client.close(1.0)


class _Pass:
    """One pass over a queue."""

    def __init__(
        self,
        target: CopyTarget,
        steps: Sequence[NamedStep],
        clean: Callable[[bytes], bytes],
        chosen: RunSet,
        progress: Progress,
    ) -> None:
        self._target = target
        self._steps = steps
        self._clean = clean
        self._chosen = chosen
        self._progress = progress
        self._done = Redriven()
        self._acknowledged = 0

    def carry(self, client: Client, path: str) -> Redriven:
        """Send what was chosen, and complete what was sent."""
        count, done = self._chosen.count(), self._done
        try:
            completed = sweep(client, path, self._chosen, self._take)
        except IsthmusError as error:
            error.add_note(f"the target had acknowledged {self._acknowledged} copies by then")
            raise
        # What was acknowledged without its lock is in the queue still; sent again, it has the same duplicate key.
        done.dropped = min(done.dropped, completed)
        done.sent = completed - done.dropped
        done.left = count - completed - done.refused
        done.gone = self._target.gone
        return done

    def _take(self, taken: Sequence[Taken], renew: Callable[[], None]) -> list[Taken]:
        finished: list[Taken] = []
        for start in range(0, len(taken), _AT_ONCE):
            if self._target.gone:
                self._chosen.clear()  # the pass ends
                break
            part = taken[start : start + _AT_ONCE]
            ready: list[Taken] = []
            copies: list[bytes] = []
            for each in part:
                made = self._prepared(each.payload)
                if isinstance(made, bytes):
                    ready.append(each)
                    copies.append(made)
                elif made:
                    finished.append(each)
            for each, verdict in zip(ready, self._target.send(copies, renew), strict=True):
                if isinstance(verdict, Sent):
                    self._acknowledged += 1
                    finished.append(each)
                elif not self._target.gone:
                    self._refuse(verdict.text)
            self._progress(len(part))
            renew()
        return finished

    def _prepared(self, payload: bytes) -> bytes | bool:
        """What the steps make of a message; else whether they drop it."""
        try:
            payload = self._clean(payload)
            if not self._steps:
                return payload
            message = StepMessage(payload)
        except (IsthmusError, ValueError) as error:
            self._refuse(f"the message cannot be read: {error}")
            return False
        for step in self._steps:
            disposition = guarded(step, message)
            if disposition is None:
                continue
            if disposition.kind == "complete":
                self._done.dropped += 1
                return True
            self._refuse(f"{disposition.reason}: {disposition.description}")
            return False
        return message.encoded()

    def _refuse(self, text: str) -> None:
        self._done.refused += 1
        self._done.first_refusal = self._done.first_refusal or text


def _cleaned(each: Redrive, choice: Choice) -> Callable[[bytes], bytes]:
    """What is taken off a message before the route's steps and its target see it."""
    if each.is_parking:
        # Its provenance starts again: where it has been, and when, counts no longer.
        return lambda payload: _without_provenance(_without_ttl(payload))
    return _without_ttl if choice.expired else lambda payload: payload


def _without_provenance(payload: bytes) -> bytes:
    parts = split(payload, HeadCache(0))
    rest = with_properties(parts.rest, {}, names.OWN_PROPERTIES)
    return payload[: len(payload) - len(parts.rest)] + rest


def _without_ttl(payload: bytes) -> bytes:
    start, end = section.locate(payload).header
    if not end:
        return payload
    header = section.decode_header(payload, (start, end))
    return payload if header.ttl_ms is None else section.encode_header(header._replace(ttl_ms=None)) + payload[end:]


def _reason_of(payload: bytes) -> str:
    try:
        found = section.map_value(payload, section.locate(payload).application_properties, names.DEAD_LETTER_REASON)
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
