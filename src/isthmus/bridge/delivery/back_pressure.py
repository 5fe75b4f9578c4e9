"""How many messages a delivery machine takes, and when its source's credit is taken back.

What it is: the room for messages, and the reason to hold the source, by what is refused. What it is not: the refusals themselves
(`isthmus.bridge.refusal`), or the sending (`delivery`).

Invariants:
    I1. A target that is busy, full, disabled or away holds the source while its recovery is active.
    I2. A few messages that are refused, each for itself, take no room and hold nothing: another has to come to compare with.
"""

from __future__ import annotations

from isthmus.bridge.delivery.outbox import Outbox
from isthmus.bridge.delivery.recovery import Recovery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.refusal import OF_THE_MESSAGE, RefusalAccount

__all__ = ["FEW_REFUSED", "BackPressure"]

# As many as a route holds sessions, and more: all of them may be refused, each for itself.
FEW_REFUSED = 144


class BackPressure:
    """That of one route.

    Args:
        settings: how the route sends.
        outbox: what was handed over.
        refusals: what is refused.
        recovery: how far the sending again is.
    """

    def __init__(
        self, settings: DeliverySettings, outbox: Outbox, refusals: RefusalAccount, recovery: Recovery
    ) -> None:
        self._settings = settings
        self._outbox = outbox
        self._refusals = refusals
        self._recovery = recovery

    def room(self, unsent: int) -> int:
        """How many messages may be handed over now, where so many wait to be sent: what waits is little, and never nothing."""
        waiting = self._settings.waiting
        held = self._outbox.unfinished - min(self._refusals.refused, FEW_REFUSED)
        return min(self._settings.window + waiting - held, waiting - unsent)

    @property
    def blocked_by(self) -> str:
        """What keeps messages from being sent; empty where nothing does."""
        trouble = self._recovery.trouble
        if not self._recovery.is_active or trouble is None:
            return ""
        if trouble.kind in OF_THE_MESSAGE and self._outbox.unfinished:
            return f"message {self._outbox.position(self._outbox.front)} is refused: {trouble}"
        return str(trouble)

    @property
    def reason(self) -> str:
        """Why the source is to be held now; empty: it is not."""
        trouble = self._recovery.trouble
        if trouble is None or not self._recovery.is_active:
            return ""
        # What is refused for itself is found out by trying another; while the few in hand are refused, one may come.
        is_away = trouble.kind not in OF_THE_MESSAGE or self._settings.block_refused or self._settings.is_strict
        few = max(1, min(self._refusals.refused, FEW_REFUSED))
        return self.blocked_by if is_away or self._outbox.unfinished > few else ""
