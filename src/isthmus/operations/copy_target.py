"""A route's target for a tool: makes copies as the route does, sends them, and returns the outcome of each.

What it is: a target port (`isthmus.bridge.port`) and the loop around it, which waits for answers. What it is not: a retry; an operator
repeats the tool.

Invariants:
    I1. A message has the verdict `Sent` only if its target has acknowledged it.
    I2. After the target is lost, or reports that it takes nothing, nothing more is sent.
    I3. A copy that is larger than the target's limit is not sent: the target would end the link.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from isthmus.bridge import registry
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.host.poll_set import PollSet
from isthmus.bridge.host.sender.target_pools import TargetPools
from isthmus.bridge.port import Connector
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError, LockLostError, MessageTooLargeError

__all__ = ["CopyTarget", "Kept", "Sent", "TargetGoneError", "Verdict"]

OPEN_SECONDS = 30.0
SILENCE_SECONDS = 60.0
_SLICE_SECONDS = 0.5
_KEY = 1
_OF_ALL = (RefusalKind.BLOCKED, RefusalKind.FATAL, RefusalKind.UNKNOWN)


class TargetGoneError(IsthmusError):
    """The target is unreachable, or takes nothing."""

    code = "target-gone"
    retryable = True


class Sent(NamedTuple):
    """The target has acknowledged the message."""


class Kept(NamedTuple):
    """The message stays in its source.

    Attributes:
        text: the reason.
        is_there: whether the target has the message already, so that a route would complete it unsent.
    """

    text: str
    is_there: bool = False


Verdict = Sent | Kept


class CopyTarget:
    """The open target of one route.

    Args:
        spec: the route.
        origin_identity: of the namespace where the messages entered; empty where it is unknown.
        connectors: returns the connector of a kind.
        meanwhile: called repeatedly while the target is opened.

    Attributes:
        failure: why nothing more is sent; empty while the target works.

    Raises:
        ConfigError: an option is invalid.
        TargetGoneError: the target is unreachable, or refuses.
    """

    def __init__(
        self,
        spec: RouteSpec,
        origin_identity: str,
        connectors: Callable[[str], Connector] = registry.connector,
        *,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.failure: str = ""
        self._name = f"{spec.target.alias}/{spec.target.options.get('entity') or spec.target.options.get('topic')}"
        self._pools = TargetPools(connectors)
        self._polls = PollSet()
        self._credit = self._sent = self._limit_bytes = 0
        self._is_open = False
        self._results: dict[int, Refusal | None] = {}
        self._target = self._pools.target(_KEY, spec, origin_identity)
        try:
            self._target.open()
            if not self._wait(lambda: self._is_open, OPEN_SECONDS, meanwhile):
                raise TargetGoneError(self.failure or f"{self._name}: no answer for {OPEN_SECONDS:g} s")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(IsthmusError):
            self._target.close()
        self._pools.close(in_good_order=not self.failure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, payloads: Sequence[bytes], meanwhile: Callable[[], None]) -> list[Verdict]:
        """Send copies of messages, wait for all answers; returns the verdict of each.

        Args:
            payloads: encoded messages, as their source delivered them.
            meanwhile: called repeatedly while answers are awaited.
        """
        if self.failure or not payloads:
            return [Kept(self.failure)] * len(payloads)
        offsets = [0, *itertools.accumulate(map(len, payloads))]
        copies = self._target.copies(b"".join(payloads), offsets, time.time_ns() // 1_000_000)
        verdicts: list[Verdict] = [Kept("not sent")] * len(payloads)
        for row, disposition in copies.disposed:
            text = f"{disposition.reason}: {disposition.description}"
            verdicts[row] = Kept(text, is_there=disposition.kind == "complete")
        rows: list[int] = []
        fitting: list[bytes] = []
        for row, copy in zip(
            copies.rows if copies.rows is not None else range(len(payloads)), copies.payloads, strict=True
        ):
            if 0 < self._limit_bytes < len(copy):
                error = MessageTooLargeError(len(copy), self._limit_bytes)
                verdicts[row] = Kept(f"MessageTooLarge: {error}")
            else:
                rows.append(row)
                fitting.append(copy)
        base, done = self._sent, 0
        while done < len(rows):
            if not self._wait(lambda: self._credit > 0, SILENCE_SECONDS, meanwhile):
                self._give_up(f"the target grants no credit for {SILENCE_SECONDS:g} s")
                break
            count = min(self._credit, len(rows) - done)
            self._target.send(Send(fitting[done : done + count]))
            self._credit -= count
            self._sent += count
            done += count
            self._pools.flush()
        if not self._wait(lambda: len(self._results) == done, SILENCE_SECONDS, meanwhile):
            self._give_up(f"no answer arrived for {SILENCE_SECONDS:g} s")
        for number, row in enumerate(rows[:done]):
            verdicts[row] = self._verdict(base + number)
        for row in rows[done:]:
            verdicts[row] = Kept(self.failure)
        self._results.clear()
        return verdicts

    def _verdict(self, ordinal: int) -> Verdict:
        if ordinal not in self._results:
            return Kept(f"not confirmed: {self.failure}")
        refusal = self._results[ordinal]
        if refusal is None:
            return Sent()
        if refusal.kind in _OF_ALL:
            self._give_up(str(refusal))
        return Kept(str(refusal))

    def _wait(self, is_done: Callable[[], bool], seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Work until a condition is true; returns false if that takes longer than so many seconds without an event, or the target is lost."""
        last_event_at = time.monotonic()
        while not is_done():
            now = time.monotonic()
            if self.failure or now - last_event_at >= seconds:
                return False
            until = min(self._pools.deadline(now), self._target.deadline(now), now + _SLICE_SECONDS)
            ready = self._polls.wait(self._pools.descriptors(), until - now)
            now = time.monotonic()
            list(self._pools.service(ready, now))
            for event in self._target.poll(now):
                last_event_at = now
                self._on(event)
            self._pools.flush()
            for error in self._pools.take_faults().values():
                self._give_up(f"a fault at the connection: {type(error).__name__}: {error}")
            try:
                meanwhile()
            except LockLostError:  # of a session: the others follow
                raise
            except IsthmusError as error:  # what the target has acknowledged still leaves its queue
                self._give_up(f"the source was lost: {error}")
        return True

    def _on(self, event: object) -> None:
        if isinstance(event, Opened):
            self._is_open, self._limit_bytes = True, event.message_bytes
        elif isinstance(event, Granted):
            self._credit = event.credit
        elif isinstance(event, Outcome):
            self._results.update(dict.fromkeys(range(event.first, event.last + 1), event.refusal))
        elif isinstance(event, Lost):
            self._give_up(str(event.refusal))

    def _give_up(self, why: str) -> None:
        self.failure = self.failure or f"{self._name}: {why}"
