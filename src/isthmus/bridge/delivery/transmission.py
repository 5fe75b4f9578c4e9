"""Which of the messages are sent now, and as which deliveries.

What it is: runs of messages as effects that send them, as far as there is room, each alone or in envelopes. What it is not: which messages
have to be sent (`delivery`), which share an envelope (`packing`), or how many (`envelope`).

Invariants:
    I1. Nothing is sent beyond the room of the link, or larger than its target's limit.
    I2. Where refusals block, nothing is sent after a message that is too large.
"""

from __future__ import annotations

from isthmus.bridge.delivery.outbox import Outbox, Run
from isthmus.bridge.delivery.packing import pack, sends
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery.target_link import TargetLink
from isthmus.bridge.delivery_event import Effect, Send
from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.refusal import Refusal, RefusalKind

__all__ = ["Transmission"]


class Transmission:
    """The transmission of one route.

    Args:
        settings: how the route sends.
        outbox: the messages.
        link: to the target.
        alone: messages that are put into no envelope; changed by its owner.
    """

    def __init__(self, settings: DeliverySettings, outbox: Outbox, link: TargetLink, alone: IndexSet) -> None:
        self._settings = settings
        self._outbox = outbox
        self._link = link
        self._alone = alone

    def send(self, start: int, stop: int, size: int, effects: list[Effect]) -> tuple[int, list[tuple[int, Refusal]]]:
        """Sends messages from start up to stop, at most `size` in a delivery, as far as there is room.

        Returns:
            The index after the last one that was sent or is too large; and those that are too large, each with its refusal.
        """
        link = self._link
        too_large: list[tuple[int, Refusal]] = []
        for run, low, high in self._outbox.parts(start, stop) if size < 2 else self._outbox.joined(start, stop):
            room = link.room
            if room <= 0 or (too_large and self._settings.block_refused):
                break
            limit = link.message_bytes
            count = min(high - low, room)
            part = run.payloads if count == len(run.payloads) else run.payloads[low : low + count]
            if size < 2 and (not limit or max(map(len, part)) <= limit):
                link.sent(run.start + low, count)
                effects.append(Send(part))
                start = run.start + low + count
            else:
                start, found = self._pack(run, low, min(high, low + link.message_room), size, effects)
                too_large += [(index, self._too_large(index)) for index in found]
            if start < run.start + high:
                break
        return start, too_large

    def _too_large(self, index: int) -> Refusal:
        nbytes = len(self._outbox.payload(index))
        text = f"The message has {nbytes} bytes; the limit is {self._link.message_bytes} bytes."
        return Refusal(RefusalKind.MESSAGE, "", text, "MessageTooLarge")

    def _pack(self, run: Run, low: int, high: int, size: int, effects: list[Effect]) -> tuple[int, list[int]]:
        """Sends a run in envelopes and single messages: (index behind the last, messages that are too large)."""
        link = self._link
        packed = pack(run, low, high, link.room, size, self._settings, link.message_bytes, self._alone)
        for offset, count in packed.deliveries:
            link.sent(run.start + offset, 1, count)
        effects += sends(run, packed.deliveries)
        return run.start + packed.stop, [run.start + offset for offset in packed.too_large]
