"""Which namespace a message is sent to, and how a send ends: the decisions of `ReplicatedSender`.

What it is: one generator for each send, which yields effects and is sent their outcomes; roles and circuits are
shared by all sends of a sender. No sockets, no threads, no clock of its own. What it is not: the sending
(`isthmus.client.send.lane`) and the outbox.
Specification: Microsoft Learn, "Best practices for insulating applications against Service Bus outages and disasters" (active
and passive replication).

Invariants:
    I1. Passive: the roles are swapped only after the standby accepted a message on which the active one failed; if both fail, the
        roles stay.
    I2. Active: a send succeeds if one namespace accepted it; a namespace that may not have accepted it is repaired from the outbox,
        if there is one.
    I3. An unknown outcome is treated as not accepted: it can cause a duplicate under one MessageId, never a loss.
    I4. A full outbox or a failing disk does not make a send fail that a namespace accepted: the missed side is reported.
    I5. An error of the message itself is raised unchanged, and does not count as a failure of a namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from azure.servicebus.exceptions import ServiceBusError

from isthmus.client.circuit import Circuit
from isthmus.client.failure import Failure
from isthmus.client.send.lane import Attempt
from isthmus.errors import IsthmusError

__all__ = [
    "ACTIVE",
    "PASSIVE",
    "Keep",
    "Mode",
    "RegionsUnavailableError",
    "Replication",
    "Save",
    "SendResult",
    "Side",
    "Try",
]

Mode = Literal["active", "passive"]
ACTIVE: Mode = "active"
PASSIVE: Mode = "passive"

_TRIAL_SECONDS = 10.0  # for an operation that was cancelled without an outcome
_RETRY_SHARE = 0.25  # share of an attempt's time that a second attempt on a new connection needs


class Side(Enum):
    """One of the two namespaces, named by its configured role."""

    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def other(self) -> Side:
        """The other side."""
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


class RegionsUnavailableError(IsthmusError, ServiceBusError):
    """No namespace accepted the message. It is also one of the SDK's errors, so that handlers of those catch it.

    Attributes:
        entity: the queue or topic.
        failures: side → the meaning of its error, as text; "not tried" if its circuit was open.
        unknown: sides that may have accepted it nevertheless. Send it again with the same MessageId.
    """

    code = "regions-unavailable"
    retryable = True

    def __init__(
        self, entity: str = "", failures: Mapping[str, str] | None = None, unknown: Collection[str] = ()
    ) -> None:
        IsthmusError.__init__(self, "", entity=entity, failures=dict(failures or {}), unknown=tuple(unknown))
        self.args = (self.text(),)

    def text(self) -> str:
        a = self.attributes
        failures = ", ".join(f"{side}: {failure}" for side, failure in a.get("failures", {}).items())
        text = f"no namespace took the message for {a.get('entity')!r} ({failures})"
        if a.get("unknown"):
            text += f"; {' and '.join(a['unknown'])} may have it: send it again with the same MessageId"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        a = self.attributes
        return type(self), (a.get("entity", ""), a.get("failures"), a.get("unknown", ()))


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send.

    Attributes:
        message_ids: MessageIds of the messages, in their order.
        taken: sides that accepted them.
        pending: sides that get them from the outbox.
        missed: sides that did not accept them and will not get them: there is no outbox, the outbox failed, or the side refused them.
        unknown: sides without an answer, or with an outbox disk that failed while it synced; they may have or get the messages as well, under
            the same MessageIds.
        active: the side that is tried first from now on (passive mode).
    """

    message_ids: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    active: str = Side.PRIMARY.value


@dataclass(frozen=True, slots=True)
class Try:
    """Send to these sides at the same time; the answer maps each side to its attempt.

    Attributes:
        sides: one or two.
        spent: seconds of the attempt's time that are used already.
    """

    sides: tuple[Side, ...]
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class Keep:
    """Store the messages in the outbox of a side; the answer has an attempt of that side if its disk refused."""

    side: Side


@dataclass(frozen=True, slots=True)
class Save:
    """Store the active side durably."""

    active: Side


Effect = Try | Keep | Save
Steps = Generator[Effect, Mapping[Side, Attempt] | None, SendResult]


@dataclass(slots=True)
class _Outcome:
    """The outcome at one side."""

    attempt: Attempt | None = None
    is_unknown: bool = False

    @property
    def failure(self) -> Failure | None:
        return self.attempt.failure if self.attempt is not None else None


@dataclass(slots=True)
class Replication:
    """The roles of two namespaces, and the decision for each send.

    The owner advances the generators of all its threads under one lock.

    Attributes:
        mode: active or passive.
        entity: for errors.
        attempt_seconds: the longest time of an attempt, as passed to the lanes.
        has_outbox: whether messages that a side missed can be stored for it.
        fail_over_on: failures after which the other side is tried (passive).
        active: the side that is tried first.
        swaps: how often the roles have changed.
    """

    mode: Mode
    entity: str
    attempt_seconds: float = 0.8
    has_outbox: bool = False
    fail_over_on: frozenset[Failure] = frozenset({Failure.GONE, Failure.UNKNOWN})
    active: Side = Side.PRIMARY
    swaps: int = 0
    circuits: dict[Side, Circuit] = field(default_factory=lambda: {side: Circuit(0.5, 5.0) for side in Side})

    def send(self, now: Callable[[], float], behind: Callable[[Side], bool] = lambda _: False) -> Steps:
        """The steps of one send.

        Args:
            now: monotonic seconds.
            behind: whether the outbox of a side still has messages, which are sent first.
        """
        return self._send_active(now, behind) if self.mode == ACTIVE else self._send_passive(now)

    def wants_link(self, side: Side, now: float) -> bool:
        """Whether to open the link of a side that gets no messages now, so that it is ready when needed."""
        return self.mode == PASSIVE and side is not self.active and self.circuits[side].allows(now, _TRIAL_SECONDS)

    def opened(self, side: Side, attempt: Attempt, now: float) -> None:
        """The outcome of opening that link."""
        self._note(side, attempt, _Outcome(), lambda: now)

    # ---- passive

    def _send_passive(self, now: Callable[[], float]) -> Steps:
        outcomes: dict[Side, _Outcome] = {}
        first = self.active
        for side in (first, first.other):
            outcome = outcomes[side] = _Outcome()
            if not self.circuits[side].allows(now(), _TRIAL_SECONDS):
                continue
            yield from self._try_one(side, outcome, now)
            if outcome.attempt is None:
                continue
            if outcome.attempt.ok:
                if side is not first and self.active is first:
                    self.active = side
                    self.swaps += 1
                    yield Save(side)
                return self._result((side,), (), (), outcomes)
            if outcome.failure not in self.fail_over_on:
                raise _error_of(outcome, outcomes)
        raise self._unavailable(outcomes)

    def _try_one(self, side: Side, outcome: _Outcome, now: Callable[[], float]) -> Generator[Effect, Any, None]:
        """One attempt; a second one on a new connection if the first used an older connection that has been lost."""
        spent = 0.0
        while True:
            answer = yield Try((side,), spent)
            self._note(side, answer[side], outcome, now)
            attempt = answer[side]
            spent += attempt.seconds
            left = self.attempt_seconds - spent
            if not (
                attempt.failure is Failure.GONE and attempt.was_open and left >= _RETRY_SHARE * self.attempt_seconds
            ):
                return

    # ---- active

    def _send_active(self, now: Callable[[], float], behind: Callable[[Side], bool]) -> Steps:
        outcomes = {side: _Outcome() for side in Side}
        ready = tuple(side for side in Side if not behind(side) and self.circuits[side].allows(now(), _TRIAL_SECONDS))
        # If no other side is available, a side with messages in its outbox also gets the message directly.
        for sides in (ready, tuple(side for side in Side if side not in ready)):
            if not sides:
                continue
            answer = yield Try(sides)
            assert answer is not None
            for side in sides:
                self._note(side, answer[side], outcomes[side], now)
            if any(_took(outcome) for outcome in outcomes.values()):
                break
            if any(_refused(outcome) for outcome in outcomes.values()):
                break
        taken = tuple(side for side, outcome in outcomes.items() if _took(outcome))
        if not taken:
            raise self._error(outcomes)
        pending: list[Side] = []
        missed: list[Side] = []
        for side, outcome in outcomes.items():
            if _took(outcome):
                continue
            if self.has_outbox and not _refused(outcome):
                refusal = yield Keep(side)
                outcome.is_unknown = outcome.is_unknown or (refusal is not None and not refusal[side].is_definite)
                (missed if refusal else pending).append(side)
            else:
                missed.append(side)
        return self._result(taken, tuple(pending), tuple(missed), outcomes)

    # ---- both

    def _note(self, side: Side, attempt: Attempt, outcome: _Outcome, now: Callable[[], float]) -> None:
        outcome.attempt = attempt
        outcome.is_unknown = outcome.is_unknown or (not attempt.ok and not attempt.is_definite)
        if attempt.failure is not None and attempt.failure.region_may_be_gone:
            self.circuits[side].failed(now())
        elif attempt.failure is Failure.MISUSE:
            self.circuits[side].released()
        else:
            self.circuits[side].succeeded()

    def _result(
        self,
        taken: tuple[Side, ...],
        pending: tuple[Side, ...],
        missed: tuple[Side, ...],
        outcomes: Mapping[Side, _Outcome],
    ) -> SendResult:
        unknown = tuple(side for side, outcome in outcomes.items() if outcome.is_unknown and not _took(outcome))
        names = [tuple(side.value for side in sides) for sides in (taken, pending, missed, unknown)]
        return SendResult((), names[0], names[1], names[2], names[3], self.active.value)

    def _error(self, outcomes: Mapping[Side, _Outcome]) -> BaseException:
        """The error of a send that no side accepted: the message's own error first, then one that an operator has to fix."""
        for wanted in (
            lambda failure: failure.is_for_the_message,
            lambda failure: not failure.region_may_be_gone,
        ):
            for outcome in outcomes.values():
                if outcome.failure is not None and wanted(outcome.failure):
                    return _error_of(outcome, outcomes)
        return self._unavailable(outcomes)

    def _unavailable(self, outcomes: Mapping[Side, _Outcome]) -> RegionsUnavailableError:
        failures = {
            side.value: outcome.failure.value if outcome.failure is not None else "not tried, it failed a moment ago"
            for side, outcome in outcomes.items()
        }
        error = RegionsUnavailableError(
            self.entity, failures, tuple(side.value for side, outcome in outcomes.items() if outcome.is_unknown)
        )
        error.__cause__ = next((o.attempt.error for o in outcomes.values() if o.attempt is not None), None)
        return error


def _took(outcome: _Outcome) -> bool:
    return outcome.attempt is not None and outcome.attempt.ok


def _refused(outcome: _Outcome) -> bool:
    """Whether a side refused the message itself. If nothing was sent, the message was not judged: the link, or the endpoint, is at fault."""
    attempt = outcome.attempt
    return (
        attempt is not None and attempt.was_sent and attempt.failure is not None and attempt.failure.is_for_the_message
    )


def _error_of(outcome: _Outcome, outcomes: Mapping[Side, _Outcome]) -> BaseException:
    """The SDK's exception, with a note of the sides that may have accepted the message nevertheless (I3)."""
    assert outcome.attempt is not None
    error = outcome.attempt.error
    assert error is not None
    unknown = [side.value for side, each in outcomes.items() if each.is_unknown]
    if unknown:
        note = f"{' and '.join(unknown)} may have the message: send it again with the same MessageId"
        if note not in getattr(error, "__notes__", ()):  # one error may end several sends
            error.add_note(note)
    return error
