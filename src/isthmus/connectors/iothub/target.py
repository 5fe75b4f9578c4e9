"""Cloud-to-device messages of an IoT hub as a target on the port.

What it is: the link to `/messages/devicebound`, the copies as messages to devices, and the hub's answers, or its feedback, as events of the
delivery machine. What it is not: the decision what to send when (`isthmus.bridge.delivery.delivery`). An envelope of the machine is sent
message by message: the hub accepts none.

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. With `acknowledged_by=device` a message is accepted only once feedback reports that its device has completed it; one record
        answers one message.
    I3. Feedback that is only about messages of other senders is not settled: the hub delivers it to them when its lock has expired. Released, it
        would be redelivered at once, again and again.
    I4. Devices that have not answered are waited for, up to `DEVICE_SECONDS` without any feedback; not while a message that the hub has refused
        for now has no outcome: it is sent again only once all others have theirs.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Progressed, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import copies_of
from isthmus.connectors.eventhubs.flight import Flight
from isthmus.connectors.iothub.device import DEVICE_BOUND, FEEDBACK, NoDeviceError, ToDevice, read_feedback, to_device
from isthmus.connectors.iothub.option import IotTargetOptions
from isthmus.connectors.iothub.pool import DevicePool
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.connectors.servicebus.port.end import End, MarkedReceiver, MarkedSender, Step
from isthmus.connectors.servicebus.refusal import may_pass, refusal_of
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.message.copy_policy import CopyPolicy
from isthmus.transport import Client

__all__ = ["DEVICE_SECONDS", "PROGRESS_SECONDS", "IotHubTarget"]

# "IoT Hub quotas and throttling": a cloud-to-device message has at most 64 KB.
MESSAGE_BYTES = 64 << 10
# By default a message to a device expires after an hour; then feedback reports that.
DEVICE_SECONDS = 4000.0
# How often it is reported that devices are waited for.
PROGRESS_SECONDS = 10.0
_FEEDBACK_CREDIT = 50
_SUCCESS = "success"


class _Part(NamedTuple):
    """A message of a delivery, by its number there."""

    ordinal: int
    number: int


class IotHubTarget(End):
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the IoT hub, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
    """

    def __init__(self, pool: DevicePool, key: int, options: IotTargetOptions, origin_identity: str) -> None:
        super().__init__(pool, key, DEVICE_BOUND, pool.remote(options.servicebus_options), sessions=2)
        self.settings = options
        self._asks = options.acknowledged_by == "device"
        self._origin_identity = origin_identity
        self._rewriter: MessageRewriter | None = None
        self._sender: MarkedSender | None = None
        self._receiver: MarkedReceiver | None = None
        self._flight = Flight()
        self._sent: dict[int, tuple[_Part, ToDevice]] = {}  # by the link's ordinal
        self._awaited: dict[tuple[str, str], list[_Part]] = {}  # by MessageId and device
        self._waiting: deque[tuple[_Part, ToDevice]] = deque()  # messages of envelopes beyond the link's credit
        self._credit = 0
        self._refused: set[tuple[str, str]] = set()  # as `_awaited`: refused for now, and without another outcome since
        self._waits_since = math.inf  # since when no device has answered
        self._reported_at = -math.inf  # when it was last reported that devices are waited for

    # ---- the port

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        events: list[TargetEvent] = []
        self.check_time(now)
        if self.check_outcomes(self._senders, now):
            events.append(Progressed())
        sender, receiver = self._sender, self._receiver
        if sender is not None and self.fault is None:
            ends = [each for each in (sender, receiver) if each is not None]
            if self.step is Step.ATTACHING and all(each.attached and each.error is None for each in ends):
                self._opened(sender.client, sender, events)
            if self.step is Step.ATTACHED:
                self._take_outcomes(sender)
                if receiver is not None:
                    self._take_feedback(receiver)
            error = next((each.error for each in ends if each.error is not None), None)
            if error is not None:
                self.fail(error)
        elif sender is not None and self.step is Step.ATTACHED:
            self._take_outcomes(sender)  # they arrived before the connection was lost, and so did feedback
            if receiver is not None:
                self._take_feedback(receiver)
        events += self._flight.take()
        if self.step is Step.ATTACHED and self.fault is None and sender is not None:
            self._send_waiting(sender)
            credit = max(0, sender.sendable - len(self._waiting))
            if credit != self._credit:
                self._credit = credit
                events.append(Granted(credit))
            if self._waits_for_devices(now):
                events.append(Progressed())
        if self.fault is not None:
            fault = self.fault
            kind = RefusalKind.UNKNOWN if may_pass(fault) else RefusalKind.FATAL
            refusal = Refusal(kind, str(fault.attributes.get("condition") or ""), str(fault))
            self._flight.lost(refusal)
            events += self._flight.take()
            self._disconnect(now)
            events.append(Lost(refusal))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        return min(self.step_deadline(now), self.outcomes_due(self._senders), self._reports_at)

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._rewriter is None:
            raise InvalidArgumentError("copies are made for a target that has answered; wait for Opened")
        return copies_of(self._rewriter, data, offsets, now_ms)

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        sender = self._sender
        if sender is None or sender.error is not None or self.step is not Step.ATTACHED:
            return
        for group in (send.payloads,) if send.is_envelope else ((payload,) for payload in send.payloads):
            ordinal = self._flight.begin(len(group))
            self._credit -= 1
            for number, payload in enumerate(group):
                self._add(_Part(ordinal, number), payload)
        self._send_waiting(sender)

    def close(self) -> None:
        """Closes it."""
        self._disconnect(time.monotonic())
        self.pool.unmark(self.key)

    def _add(self, part: _Part, payload: bytes) -> None:
        try:
            made = to_device(payload, self.settings.device, asks=self._asks)
        except NoDeviceError as error:
            self._answered(part, Refusal(RefusalKind.MESSAGE, "", str(error), "NoDevice"))
            self.mark()
        except (CodecError, IndexError, ValueError) as error:
            self._answered(part, Refusal(RefusalKind.MESSAGE, "", str(error), "Malformed"))
            self.mark()
        else:
            self._waiting.append((part, made))

    def _send_waiting(self, sender: MarkedSender) -> None:
        while self._waiting and sender.sendable > 0:
            part, made = self._waiting.popleft()
            if self._asks:  # feedback may arrive before the hub's own answer
                self._awaited.setdefault(made.identity, []).append(part)
            self._sent[sender.send((made.payload,))] = part, made

    def _answered(self, part: _Part, refusal: Refusal | None = None) -> None:
        self._flight.answered(part.ordinal, refusal, (part.number,))

    # ---- the links

    def attach(self, client: Client) -> None:
        """Begins the links."""
        self._sender = MarkedSender(self.mark, client, DEVICE_BOUND, ())
        if self._asks:
            self._receiver = MarkedReceiver(self.mark, client, FEEDBACK)

    def _opened(self, client: Client, sender: MarkedSender, events: list[TargetEvent]) -> None:
        self._rewriter = self._rewriter or self._rewriter_for(client.namespace_id)
        self.attached()
        self._credit = 0
        limit = sender.max_message_bytes
        events.append(Opened(min(limit, MESSAGE_BYTES) if limit else MESSAGE_BYTES, 0))
        if self._receiver is not None:
            self._receiver.grant(_FEEDBACK_CREDIT)

    def _take_outcomes(self, sender: MarkedSender) -> None:
        while sender.outcomes:
            first, last, error = sender.outcomes.popleft()
            for number in range(first, last + 1):
                part, made = self._sent.pop(number)
                if error is not None:
                    self._forget(made, part)
                    refusal = _refusal(error)
                    if refusal.kind is RefusalKind.MESSAGE:
                        self._refused.discard(made.identity)
                    else:
                        self._refused.add(made.identity)
                    self._answered(part, refusal)
                elif not self._asks:
                    self._answered(part)

    def _take_feedback(self, receiver: MarkedReceiver) -> None:
        for run in receiver.take():
            for number, payload in enumerate(run.payloads, run.first_id):
                is_ours = False
                try:
                    records = read_feedback(payload)
                except (CodecError, IndexError, ValueError):
                    records = []
                for each in records:
                    identity = each.identity
                    if identity not in self._awaited:
                        continue
                    is_ours = True
                    self._waits_since = math.inf
                    self._refused.discard(identity)
                    refusal = None
                    if each.status.lower() != _SUCCESS:
                        text = f"device '{each.device}': {each.status}: {each.description}".rstrip(": ")
                        refusal = Refusal(RefusalKind.MESSAGE, each.status, text, "RefusedByDevice")
                    # Of several messages with one MessageId each has its own record.
                    first = self._awaited[identity].pop(0)
                    if not self._awaited[identity]:
                        del self._awaited[identity]
                    self._answered(first, refusal)
                if is_ours or not records:
                    receiver.dispose(number, number)
        if receiver.credit < _FEEDBACK_CREDIT // 2:
            receiver.grant(_FEEDBACK_CREDIT)

    def _waits_for_devices(self, now: float) -> bool:
        """Whether to report now that devices are waited for (I4)."""
        if not self._awaited or self._refused:
            self._waits_since = math.inf
            return False
        self._waits_since = min(self._waits_since, now)
        if not self._reports_at <= now < self._waits_since + DEVICE_SECONDS:
            return False
        self._reported_at = now
        return True

    @property
    def _reports_at(self) -> float:
        due = self._reported_at + PROGRESS_SECONDS
        is_waiting = self._awaited and not self._refused
        return due if is_waiting and due < self._waits_since + DEVICE_SECONDS else math.inf

    def _forget(self, made: ToDevice, part: _Part) -> None:
        awaited = self._awaited.get(made.identity, [])
        if part in awaited:
            awaited.remove(part)
        if not awaited:
            self._awaited.pop(made.identity, None)

    def _rewriter_for(self, identity: str) -> MessageRewriter:
        options = self.settings
        return MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=self._origin_identity if options.origin else "",
            target_namespace=identity,
            entity=options.topic,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            trusts=options.trusts_provenance,
            policy=CopyPolicy.from_text(options.policy),
        )

    @property
    def _senders(self) -> tuple[MarkedSender, ...]:
        return () if self._sender is None else (self._sender,)

    def _disconnect(self, now: float) -> None:
        for link in (self._sender, self._receiver):
            if link is not None and link.client.error is None:
                link.close()
        self._sender = self._receiver = None
        self._sent.clear()
        self._awaited.clear()
        self._waiting.clear()
        self._flight = Flight()
        self._credit = 0
        self._refused.clear()
        self._waits_since = math.inf
        self.disconnect(now)


def _refusal(error: IsthmusError) -> Refusal:
    """A missing device is the message's fault, not the route's; a full queue of a device is temporary."""
    condition = str(error.attributes.get("condition") or "")
    if error.code == "entity-not-found" or condition == "amqp:not-found":
        return Refusal(
            RefusalKind.MESSAGE, condition or "amqp:not-found", f"the IoT hub has no such device: {error}", "NoDevice"
        )
    return refusal_of(error)
