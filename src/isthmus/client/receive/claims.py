"""One receiver's use of the list of seen messages: its claims, and the lease that keeps them valid.

What it is: the calls to a `SeenStore`, which count failures and convert them to "no answer", and a thread that renews the lease and keeps
the list within its bounds. What it is not: the list (`isthmus.client.seen`), nor the decisions that follow from its answers (`merge`).

Invariants:
    C1. `is_current` is true only while the list counts this receiver's claims, whatever this process did meanwhile, also if the
        machine slept, or if its clock, which a list in a file uses, was set forward.
    C2. A lease that is renewed after it expired is reported first: another receiver may have claimed what this receiver had claimed.
    C3. Any exception of a list counts as "no answer": a list of the application's own ends no thread.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from isthmus.client.seen.store import Keys, SeenStore, SeenStoreError, Verdict

__all__ = ["Claims"]

_LOGGER = logging.getLogger(__name__)
_BEAT_SECONDS = 1.0
_SWEEP_SECONDS = 10.0
# On Linux the monotonic clock stops while the machine sleeps, and a lease does not; on other systems it continues.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Claims:
    """The claims of one receiver.

    Args:
        seen: the list.
        on_lapse: called with the monotonic time when the lease had expired (C2).
        on_beat: called with the monotonic time every second or more often.
        closes: whether `close` closes the list; False for a list of the application, which may use it elsewhere.

    Attributes:
        owner: the receiver's name in the list.
        errors: how often the list failed.
        forgotten_early: ids that the list forgot although they were within the window.
    """

    def __init__(
        self,
        seen: SeenStore,
        on_lapse: Callable[[float], None],
        on_beat: Callable[[float], None],
        *,
        closes: bool = True,
    ) -> None:
        self.owner = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.errors = self.forgotten_early = 0
        self._seen = seen
        self._lease_seconds = seen.bounds.lease.total_seconds()
        self._on_lapse = on_lapse
        self._on_beat = on_beat
        self._closes = closes
        self._until = self._until_wall = -math.inf
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="isthmus-seen", daemon=True)

    def start(self) -> None:
        """Start renewing."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End all claims, and close the list if it was opened here."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        try:
            self._seen.retire(self.owner)
            if self._closes:
                self._seen.close()
        except Exception as error:  # noqa: BLE001 - C3; the claims end with the lease
            _LOGGER.warning("%s", error)

    @property
    def is_current(self) -> bool:
        """Whether the claims are valid (C1)."""
        return _steady() < self._until and _wall() < self._until_wall

    def moment(self) -> tuple[float, float]:
        """The current time, for `is_within_lease`."""
        return _steady(), _wall()

    def is_within_lease(self, asked_at: tuple[float, float]) -> bool:
        """Whether the list's answers to a question of that time are still valid."""
        return all(now < at + self._lease_seconds for now, at in zip(self.moment(), asked_at, strict=True))

    def claim(self, messages: Sequence[Keys]) -> Sequence[Verdict | None]:
        """The list's verdicts on messages; None if it does not answer."""
        if not messages:
            return []
        asked_at = self.moment()
        try:
            verdicts = self._seen.claim(messages, self.owner)
        except Exception as error:  # noqa: BLE001 - C3
            self._failed(error)
            return [None] * len(messages)
        self._renewed(asked_at)
        return verdicts

    def handle(self, keys: Iterable[bytes]) -> bool:
        """Marks a message as handled, durably. Returns whether it was not handled before.

        Raises:
            SeenStoreError: the list does not answer.
        """
        try:
            (is_first,) = self._seen.handle([tuple(keys)], self.owner)
        except SeenStoreError as error:
            self._failed(error)
            raise
        except Exception as error:
            self._failed(error)
            raise SeenStoreError(type(self._seen).__name__, f"{type(error).__name__}: {error}") from error
        return is_first

    def release(self, keys: Keys) -> None:
        """Releases a claim; one that the list does not receive ends with the lease, or when the message is claimed again."""
        try:
            self._seen.release([keys], self.owner)
        except Exception as error:  # noqa: BLE001 - C3
            self._failed(error)

    def _renewed(self, asked_at: tuple[float, float]) -> None:
        if not self.is_current:
            self._on_lapse(time.monotonic())
        self._until, self._until_wall = (each + self._lease_seconds for each in asked_at)

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        if isinstance(error, SeenStoreError):
            _LOGGER.warning("%s", error)
        else:
            _LOGGER.warning("the list of seen messages %s failed", type(self._seen).__name__, exc_info=error)

    def _run(self) -> None:
        pause = self._lease_seconds / 3
        renew_at = sweep_at = time.monotonic()
        while not self._stopping.wait(min(pause, _BEAT_SECONDS)):
            now = time.monotonic()
            try:
                self._on_beat(now)
            except Exception:  # the lease is renewed whatever happens to a connection
                _LOGGER.exception("a connection that hangs could not be ended")
            try:
                if now >= renew_at:
                    asked_at = self.moment()
                    self._seen.renew(self.owner)
                    self._renewed(asked_at)
                    renew_at = now + pause
                if now >= sweep_at:
                    self.forgotten_early += self._seen.sweep().by_count
                    sweep_at = now + _SWEEP_SECONDS
            except Exception as error:  # noqa: BLE001 - C3
                self._failed(error)


def _steady() -> float:
    """Monotonic seconds that continue while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def _wall() -> float:
    return time.time_ns() / 1e9
