"""The sink's side of a lease for one route: sending to a target, and the outcomes.

What it is: a machine without I/O. It takes messages in the order of their source, says which to send, takes the target's
outcomes, and says which messages to complete or to dead-letter at their source. `on(event, now)` returns effects; a run of
many messages is one event. What it is not: a connection (`connectors`), the channel to the source, or a lease; nor, though it owns them,
sending (`transmission`), the rounds of resending (`recovery`), or back-pressure (`back_pressure`).
The rules of order, of messages that are refused, and of envelopes: docs/explanation/lease.md, "Order".

Invariants:
    I1. A message is completed at its source only after its target accepted it, and then at once, independent of earlier
        messages. Every message that is handed over is completed or gets another disposition, unless the machine fails.
    I2. After a refusal or a lost connection nothing is sent for the first time, except to find out whether a message is
        refused individually, until everything that was sent before has an outcome.
    I3. A message is sent again only when it was refused, or when its connection was lost before its outcome.
    I4. A target that is busy, full, disabled or unreachable blocks: no message is set aside for it, and credit is taken back at
        the source. When it has accepted nothing for `timeout_seconds`, and does not report why (`Stopped`), the machine fails.
    I5. A flush row is answered after everything handed over before it is finished.
    I6. Of an envelope that is refused for one message only that message is set aside; the others are sent again, each alone.
        Messages of it that the target accepted nevertheless are completed, and not sent again.
    I7. Resent messages are never in an envelope that the machine chose by itself; those are for short credit (`envelope`).
    I8. A strict machine has one delivery in flight, and sends nothing after a message that was refused and has no outcome.
    I9. How long a message has been refused, and whether another has been accepted since, is carried over to the next machine of
        the route.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.bridge import delivery_event as e
from isthmus.bridge.delivery.back_pressure import BackPressure
from isthmus.bridge.delivery.envelope import EnvelopeChoice
from isthmus.bridge.delivery.in_flight import Answered
from isthmus.bridge.delivery.outbox import Outbox
from isthmus.bridge.delivery.recovery import Recovery
from isthmus.bridge.delivery.settings import DeliveryCounts, DeliverySettings
from isthmus.bridge.delivery.target_link import TargetLink
from isthmus.bridge.delivery.transmission import Transmission
from isthmus.bridge.delivery_event import Effect, Event
from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.refusal import OF_THE_MESSAGE, Refusal, RefusalAccount, RefusalKind
from isthmus.bridge.refusal_memory import RefusalMemory

__all__ = ["Delivery", "DeliveryCounts", "DeliverySettings"]


class Delivery:
    """The delivery machine of one route.

    Args:
        settings: how it sends.
        memory: the refused messages that earlier machines noted; None: none.

    Attributes:
        counts: messages by outcome.
        last_set_aside: position and refusal of the message that was set aside last, as a text; empty for none.
        has_failed: whether `Fail` was returned; events change nothing after it.
    """

    def __init__(self, settings: DeliverySettings | None = None, memory: RefusalMemory | None = None) -> None:
        self.settings = settings or DeliverySettings()
        self.counts = DeliveryCounts()
        self.last_set_aside = ""
        self.has_failed = False
        self._outbox = Outbox()
        # Where refusals block, the first message may be the one that blocked an earlier machine: no message may overtake it.
        most = 1 if self.settings.is_strict else self.settings.window
        self._link = TargetLink(self.settings.window, 1 if self.settings.block_refused else most, most)
        others = not self.settings.is_quiet
        self._refusals = RefusalAccount(self.settings.set_aside_seconds, memory, self._outbox.key, needs_others=others)
        self._recovery = Recovery(self.settings.delay_seconds)
        self._envelopes = EnvelopeChoice(self.settings)
        self._next = 0  # the first message that was never sent
        self._again = IndexSet()  # sent before, without an outcome, and not in flight
        self._alone = IndexSet()  # to be sent each alone, e.g. from refused envelopes
        self._held = ""  # why the source is paused
        self._transmission = Transmission(self.settings, self._outbox, self._link, self._alone)
        self._pressure = BackPressure(self.settings, self._outbox, self._refusals, self._recovery)
        self._handlers: dict[type, Callable[[Any, float, list[Effect]], None]] = {
            e.HandedOver: self._on_handed_over,
            e.Flush: self._on_flush,
            e.Opened: self._on_opened,
            e.Granted: self._on_granted,
            e.Progressed: lambda event, now, effects: self._recovery.progressed(now),
            e.Stopped: lambda event, now, effects: self._recovery.stop(event.reason, now),
            e.Outcome: self._on_outcome,
            e.Lost: self._on_lost,
            e.Tick: lambda event, now, effects: None,
        }

    # ---- queries of the shell

    @property
    def room(self) -> int:
        """How many messages may be handed over now: a few always wait to be sent, but never many. A few refused ones take no room:
        another message is needed for comparison.
        """
        return self._pressure.room(self._outbox.end - self._next)

    @property
    def unfinished(self) -> int:
        """Messages handed over and not finished."""
        return self._outbox.unfinished

    @property
    def credit(self) -> int:
        """The rest of the last credit."""
        return self._link.credit

    @property
    def unsent(self) -> int:
        """Messages that were never sent."""
        return self._outbox.end - self._next

    @property
    def is_recovering(self) -> bool:
        """Whether something was refused or lost and has no outcome yet."""
        return self._recovery.is_active

    @property
    def is_stopped(self) -> bool:
        """Whether the target reports that it accepts nothing at present: no time-out applies."""
        return bool(self._recovery.stopped)

    @property
    def blocked_by(self) -> str:
        """The reason for which no messages are sent; empty where there is none."""
        return self._pressure.blocked_by

    def deadline(self, now: float) -> float:
        """When a `Tick` is due even without events; infinite where none is."""
        if not self._recovery.is_active or self.has_failed:
            waits = self.unsent and self._link.is_open and not self.has_failed
            return self._envelopes.wait_until if waits else math.inf
        is_awaited = self._link.flight.outstanding > 0
        return self._recovery.deadline(now, self.settings.timeout_seconds, is_awaited=is_awaited)

    # ---- events

    def on(self, event: Event, now: float) -> list[Effect]:
        """Takes an event; returns the effects, in order."""
        effects: list[Effect] = []
        if self.has_failed:
            return effects
        self._handlers[type(event)](event, now, effects)
        if self._recovery.is_active or self._next < self._outbox.end:
            self._pump(now, effects)
        if (self._recovery.may_pause or self._held) and (reason := self._pressure.reason) != self._held:
            self._held = reason
            effects.append(e.Pause(reason) if reason else e.Resume())
        return effects

    def _on_handed_over(self, event: e.HandedOver, now: float, effects: list[Effect]) -> None:
        start = self._outbox.end
        self._outbox.add(event.payloads, event.positions)
        if event.is_alone and event.payloads:
            self._alone.add(start, self._outbox.end)
        self._recovery.try_unsent(self._next, self._outbox.end)
        for position, disposition in event.disposed:
            self.counts.add(disposition.kind)
            effects.append(e.Dispose(position, disposition))

    def _on_flush(self, event: e.Flush, now: float, effects: list[Effect]) -> None:
        effects.extend(map(e.Flushed, self._outbox.add_flush(event.number)))

    def _on_opened(self, event: e.Opened, now: float, effects: list[Effect]) -> None:
        self._link.opened(event.message_bytes)
        self._envelopes.opened(event.envelope_messages)
        self._recovery.opening = False
        self._recovery.retry_at = now

    def _on_granted(self, event: e.Granted, now: float, effects: list[Effect]) -> None:
        self._link.credit = event.credit

    def _on_outcome(self, event: e.Outcome, now: float, effects: list[Effect]) -> None:
        first, last, refusal, taken = event
        for answered in self._link.flight.answered(first, last):
            if refusal is None:
                self._accept(answered, now, effects)
            elif taken:
                self._refuse_rest(answered, taken, refusal, now, effects)
            elif refusal.kind is RefusalKind.FATAL:
                self._fail(refusal, effects)
            else:
                for number in range(answered.deliveries):
                    self._refuse(answered.first + number * answered.size, answered.size, refusal, now, effects)

    def _on_lost(self, event: e.Lost, now: float, effects: list[Effect]) -> None:
        self._link.lost()
        if event.refusal.kind is RefusalKind.FATAL:
            self._fail(event.refusal, effects)
            return
        self._again.clear()
        for start, stop in self._outbox.unfinished_below(self._next):
            self._again.add(start, stop)
        self._recovery.lost(now, event.refusal)

    # ---- outcomes

    def _accept(self, answered: Answered, now: float, effects: list[Effect]) -> None:
        start, deliveries, size = answered
        stop = start + deliveries * size
        self.counts.completed += stop - start
        self._refusals.accept(start, stop, deliveries)
        self._envelopes.accepted(start, stop)
        recovery = self._recovery
        if recovery.is_active:
            recovery.took(now)
        recovery.end_search()
        if recovery.probe is not None:
            recovery.probe = None
            recovery.hurry()
        else:
            self._link.grow(deliveries)
        for run, low, high in self._outbox.parts(start, stop):
            if run.positions is not None:
                whole = low == 0 and high == len(run.payloads)
                effects.append(e.Settle(run.positions if whole else run.positions[low:high]))
        self._finish(start, stop, effects)

    def _refuse(self, index: int, size: int, refusal: Refusal, now: float, effects: list[Effect]) -> None:
        """One delivery was refused, of the message `index` or of an envelope of `size` messages."""
        recovery, is_blocking = self._recovery, self.settings.block_refused
        was_probe = recovery.probe == index
        if was_probe:
            recovery.probe = None
        if refusal.kind is RefusalKind.MESSAGE and size == 1 and not is_blocking:
            if index == self._outbox.front:
                recovery.end_search()
            self._set_aside(index, refusal, str(refusal), effects)
            recovery.took(now)
            return
        self._again.add(index, index + size)
        if size > 1 and refusal.kind in OF_THE_MESSAGE:
            self._envelopes.refused(index, index + size, refusal.kind is RefusalKind.MESSAGE)
        if refusal.kind is RefusalKind.MESSAGE and size > 1:
            self._alone.add(index, index + size)
            recovery.begin(now, None)
            return
        recovery.begin(now, refusal)
        self._link.limit = 1
        if refusal.kind not in OF_THE_MESSAGE:
            recovery.is_searching = False
            self._refusals.disregard(index, index + size)
        elif size > 1:
            if index == self._outbox.front:
                self._alone.add(index, index + size)
        else:
            for_itself, other_is_missing = self._refusals.refuse(index, now)
            if is_blocking or self.settings.is_strict:
                return
            if index != self._outbox.front:
                if for_itself:
                    self._set_aside_unclear(index, refusal, now, effects)
                if was_probe:
                    recovery.try_unsent(self._next, self._outbox.end)
                return
            recovery.is_searching = other_is_missing
            if other_is_missing:
                recovery.search_others(self._again, self._outbox.front, self._next, self._outbox.end)
                others_refused = all(map(self._refusals.is_refused, recovery.candidates))
                for_itself = others_refused and self._refusals.has_been_passed(index)
            if for_itself:
                recovery.end_search()
                self._set_aside_unclear(index, refusal, now, effects)
                recovery.hurry()

    def _refuse_rest(
        self, answered: Answered, taken: Sequence[int], refusal: Refusal, now: float, effects: list[Effect]
    ) -> None:
        """An envelope was refused in part. The cause may be any of the remaining messages: nothing is known of a single one."""
        stored, rest = answered.divided(taken)
        for start, stop in stored:
            self._accept(Answered(start, 1, stop - start), now, effects)
        if refusal.kind is RefusalKind.FATAL:
            self._fail(refusal, effects)
            return
        for start, stop in rest:
            self._again.add(start, stop)
            if refusal.kind in OF_THE_MESSAGE:
                self._alone.add(start, stop)
            else:
                self._refusals.disregard(start, stop)
        if refusal.kind is RefusalKind.MESSAGE:
            self._recovery.begin(now, None)
            return
        self._recovery.begin(now, refusal)
        self._link.limit = 1
        if refusal.kind is not RefusalKind.UNCLEAR:
            self._recovery.is_searching = False

    def _set_aside_unclear(self, index: int, refusal: Refusal, now: float, effects: list[Effect]) -> None:
        """Sets aside a message that was refused without a reason, and was found to be refused individually."""
        self._again.remove(index, index + 1)
        self._set_aside(index, refusal, f"{refusal} ({self._refusals.history(index, now)})", effects)

    def _set_aside(self, index: int, refusal: Refusal, text: str, effects: list[Effect]) -> None:
        position = self._outbox.position(index)
        disposition = e.Disposition("dead-letter", refusal.reason, text)
        self.counts.add(disposition.kind)
        self.last_set_aside = f"message {position}: {text}"
        self._refusals.forget(index, index + 1)
        self._envelopes.set_aside(index)
        effects.append(e.Dispose(position, disposition))
        self._finish(index, index + 1, effects)

    def _finish(self, start: int, stop: int, effects: list[Effect]) -> None:
        if self._alone:
            self._alone.remove(start, stop)
        effects.extend(map(e.Flushed, self._outbox.finish(start, stop)))

    def _fail(self, refusal: Refusal, effects: list[Effect], timed_out_seconds: float = 0.0) -> None:
        if not self.has_failed:
            self.has_failed = True
            effects.append(e.Fail(refusal, timed_out_seconds))

    # ---- sending

    def _pump(self, now: float, effects: list[Effect]) -> None:
        link, recovery = self._link, self._recovery
        if recovery.is_active and not self._recover(now, effects):
            return
        if link.is_open and self._next < self._outbox.end and not self.has_failed:
            credit = link.credit if link.waits_for_credit else 0
            flight = link.flight
            is_packed = flight.messages > flight.outstanding
            size = self._envelopes.size(self.unsent, credit, flight.outstanding, now, is_packed=is_packed)
            if self._envelopes.wait_until < math.inf:
                return
            while True:
                sent_end, too_large = self._transmission.send(self._next, self._outbox.end, size, effects)
                for index, refusal in too_large:
                    self._refuse(index, 1, refusal, now, effects)
                is_done = sent_end == self._next
                self._next = sent_end
                if is_done or flight.outstanding or recovery.is_active or sent_end == self._outbox.end:
                    break  # otherwise everything that there was room for was refused unsent, and no outcome would continue with the rest
            if recovery.is_active:
                self._recover(now, effects)

    def _recover(self, now: float, effects: list[Effect]) -> bool:
        """Resends messages; returns whether everything that was sent has an outcome."""
        link, recovery = self._link, self._recovery
        if self.has_failed:
            return False
        seconds, is_awaited = self.settings.timeout_seconds, link.flight.outstanding > 0
        if (trouble := recovery.overdue(now, seconds, is_awaited=is_awaited)) is not None:
            self._fail(trouble, effects, seconds)
            return False
        if not link.is_open:
            if not recovery.opening and now >= recovery.retry_at:
                recovery.opening = True
                effects.append(e.Open())
            return False
        if recovery.settling:
            if link.flight.outstanding:
                return False
            recovery.settled(now)
        while recovery.candidates and recovery.probe is None and link.room > 0:
            self._send_probe(recovery.candidates.pop(0), now, effects)
        if recovery.probe is not None or now < recovery.retry_at:
            return False
        while self._again and link.room > 0 and not recovery.settling:
            start, stop = self._again.first()
            self._again.remove(start, stop)
            sent_end = self._send(start, stop, self._envelopes.configured, now, effects)
            self.counts.resent += sent_end - start
            if sent_end < stop:
                self._again.add(sent_end, stop)
        if recovery.settling and not link.flight.outstanding:  # messages that are too large were refused unsent
            recovery.settled(now)
        if self._again or link.flight.outstanding:
            return False
        recovery.end()
        return True

    def _send_probe(self, index: int, now: float, effects: list[Effect]) -> None:
        if index in self._again:
            self._again.remove(index, index + 1)
            self.counts.resent += 1
        elif index == self._next:
            self._next += 1
        else:
            return
        self._recovery.last_probe = index
        outstanding = self._link.flight.outstanding
        self._alone.add(index, index + 1)
        self._send(index, index + 1, 1, now, effects)
        if self._link.flight.outstanding > outstanding:
            self._recovery.probe = index

    def _send(self, start: int, stop: int, size: int, now: float, effects: list[Effect]) -> int:
        """Sends messages, as far as there is room; returns the index after the last one that was sent or is too large."""
        self._recovery.sent_at = now
        sent_end, too_large = self._transmission.send(start, stop, size, effects)
        for index, refusal in too_large:
            self._refuse(index, 1, refusal, now, effects)
        return sent_end
