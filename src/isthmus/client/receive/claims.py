"""One receiver's use of the list of seen messages: its claims, and the lease by which they count.

What it is: the calls to a `SeenStore`, with failures counted and turned into "no answer", and a thread that renews the lease and keeps
the list within its bounds. What it is not: the list (`isthmus.client.seen`), nor what follows from its answers (`merge`).

Invariants:
    C1. `is_current` is true only while the list counts this receiver's claims, whatever this process was doing meanwhile, also where the
        machine slept, or its clock, by which a list in a file counts, was set forward.
    C2. A lease that is renewed after it ran out is reported first: others may have claimed what this receiver had claimed.
    C3. Whatever a list raises, it is "no answer": a list of the application's own ends no thread.
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
# On Linux the monotonic clock stands still while the machine sleeps, and a lease does not; elsewhere it goes on.
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Claims:
    """The claims of one receiver.

    Args:
        seen: the list.
        on_lapse: is called with the monotonic time when the lease had run out (C2).
        on_beat: is called with the monotonic time every second or more often.
        closes: whether the list is closed with this; not if it is the application's, which may use it elsewhere.

    Attributes:
        owner: the receiver's name in the list.
        errors: how often the list failed.
        forgotten_early: ids that went though they were within the window.
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
        """Begins to renew."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Ends all claims, and the use of the list."""
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
        """Whether the claims count (C1)."""
        return _steady() < self._until and _wall() < self._until_wall

    def moment(self) -> tuple[float, float]:
        """Now, for `is_within_lease`."""
        return _steady(), _wall()

    def is_within_lease(self, asked_at: tuple[float, float]) -> bool:
        """Whether what the list said to a question of that moment holds still."""
        return all(now < at + self._lease_seconds for now, at in zip(self.moment(), asked_at, strict=True))

    def claim(self, messages: Sequence[Keys]) -> Sequence[Verdict | None]:
        """What the list says of messages; None where it does not answer."""
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
        """Marks a message as handled, durably; whether it was not before.

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
        """Takes a claim back; one that the list does not hear of ends with the lease, or when it is asked for again."""
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
            except Exception:  # the lease is renewed whatever becomes of a connection
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
    """Monotonic seconds that go on while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def _wall() -> float:
    return time.time_ns() / 1e9
