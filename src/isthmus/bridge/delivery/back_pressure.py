"""Back-pressure: how many messages a delivery machine takes, and when its source's credit is taken back.

What it is: the room for messages, and the reason to pause the source, from the refusals. What it is not: the refusals themselves
(`isthmus.bridge.refusal`), or the sending (`delivery`).

Invariants:
    I1. A target that is busy, full, disabled or unreachable pauses the source while its recovery is active.
    I2. A target that reports that it accepts nothing pauses the source until it reports the opposite.
    I3. A few messages that are refused individually take no room and do not pause the source: another message is needed for
        comparison.
"""

from __future__ import annotations

from isthmus.bridge.delivery.outbox import Outbox
from isthmus.bridge.delivery.recovery import Recovery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.refusal import OF_THE_MESSAGE, RefusalAccount

__all__ = ["FEW_REFUSED", "BackPressure"]

# More than the sessions that a route may have locked: one message of each may be refused.
FEW_REFUSED = 144


class BackPressure:
    """The back-pressure of one route.

    Args:
        settings: how the route sends.
        outbox: the messages handed over.
        refusals: the refused messages.
        recovery: the state of resending.
    """

    def __init__(
        self, settings: DeliverySettings, outbox: Outbox, refusals: RefusalAccount, recovery: Recovery
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._refusals = refusals
        self._recovery = recovery

    def room(self, unsent: int) -> int:
        """How many messages may be handed over now, given those that wait to be sent: a few always wait, but never many."""
        waiting = self._settings.waiting
        held = self._outbox.unfinished - min(self._refusals.refused, FEW_REFUSED)
        return min(self._settings.window + waiting - held, waiting - unsent)

    @property
    def blocked_by(self) -> str:
        """The reason for which no messages are sent; empty where there is none."""
        trouble = self._recovery.trouble
        if self._recovery.stopped:
            return self._recovery.stopped
        if not self._recovery.is_active or trouble is None:
            return ""
        if trouble.kind in OF_THE_MESSAGE and self._outbox.unfinished:
            return f"message {self._outbox.position(self._outbox.front)} is refused: {trouble}"
        return str(trouble)

    @property
    def reason(self) -> str:
        """Why the source must be paused now; empty: it need not."""
        trouble = self._recovery.trouble
        if self._recovery.stopped:
            return self._recovery.stopped
        if trouble is None or not self._recovery.is_active:
            return ""
        # Whether a message is refused individually is found out by trying another; while the few at hand are refused, one may come.
        is_away = trouble.kind not in OF_THE_MESSAGE or self._settings.block_refused or self._settings.is_strict
        few = max(1, min(self._refusals.refused, FEW_REFUSED))
        return self.blocked_by if is_away or self._outbox.unfinished > few else ""
