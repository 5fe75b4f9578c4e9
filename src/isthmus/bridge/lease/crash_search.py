"""The search for a message that crashes the worker that moves it.

What it is: the driver's account of a route's crashed workers. Messages in flight in a crashed worker are delivered again, and a
message that crashes its worker is delivered to the next one. After each crash fewer messages are allowed in flight, until the
one at the head is alone; if workers keep crashing with it, it is set aside: the next lease dead-letters it without handing it on.
What it is not: the reports and the sending of the plan (`isthmus.bridge.host.control.server`), nor the window (`credit_window`).

Why the search ends, and its cost. At a crash at most the lease's window of messages, W, was in flight; in an ordered route
these are the next W messages. They are delivered with a smaller window w, for a span of W messages:
    W over 64 → w 64;  W over 8 → w 8;  else w 1
If workers crash for another reason, the span passes and the window opens again. If a message crashes them, the next crash is
within the span, and the span after it is w. So the window is 1 after three crashes, and the message known after DEATHS_ALONE
more. All other messages of the first window are delivered once more than necessary, 63 twice, and 7 three times: far below a
delivery count of 10, at which their broker would dead-letter them.

Invariants:
    I1. A message is set aside only after DEATHS_ALONE consecutive crashes during each of which it alone was in flight.
    I2. After one was set aside no other is until a message has moved: if every worker crashes, no message is the cause.
    I3. Each crash narrows the window or names the head; once the span has passed, its effect ends.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEATHS_ALONE", "SET_ASIDE_REASON", "CrashSearch", "Plan"]

STEPS = (64, 8, 1)
DEATHS_ALONE = 2
SET_ASIDE_REASON = "KilledItsWorker"


class Plan(NamedTuple):
    """The plan for a lease.

    Attributes:
        window: messages in flight at most, until `span` messages are settled; 0: no limit.
        span: see `window`.
        set_aside: sequence number of the message to dead-letter; 0: none.
        deaths: how many workers crashed with that message, for the description.
    """

    window: int = 0
    span: int = 0
    set_aside: int = 0
    deaths: int = 0


class CrashSearch:
    """The account of one route; lives as long as the run, over all starts of the route."""

    def __init__(self) -> None:
        self._window = 0
        self._span = 0
        self._head = 0
        self._deaths = 0
        self._may_set_aside = True
        self._set_aside = 0  # the last one, which may come again if its settlement was lost with a connection

    def plan(self) -> Plan:
        """The plan for the present lease, and for the next one."""
        allowed = self._may_set_aside or self._head == self._set_aside
        named = self._head if self._deaths >= DEATHS_ALONE and allowed else 0
        return Plan(self._window, self._span, named, self._deaths if named else 0)

    def died(self, window: int, outstanding: int, head: int) -> None:
        """A worker of the lease crashed.

        Args:
            window: messages that may have been in flight.
            outstanding: messages that were, as last reported; exact where the window is 1.
            head: the sequence number of the first of them; 0: none was.
        """
        if window <= 1 and not (outstanding and head):
            return  # no message can be the cause
        self._span = window
        self._window = next((step for step in STEPS if step < window), 1)
        if window > 1:
            self._head = self._deaths = 0
        elif head == self._head:
            self._deaths += 1
        else:
            self._head, self._deaths = head, 1

    def moved(self, count: int) -> None:
        """Messages were settled."""
        if count <= 0:
            return
        self._may_set_aside = True
        if self._window:
            self._span -= count
            if self._span <= 0:
                self._window = self._span = self._head = self._deaths = 0

    def set_aside(self, sequence: int) -> None:
        """The lease has dead-lettered a message as planned."""
        if sequence == self._head:
            self._window = self._span = self._head = self._deaths = 0
            self._may_set_aside = False
            self._set_aside = sequence
