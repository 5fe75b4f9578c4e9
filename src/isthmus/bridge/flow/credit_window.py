"""The credit that a reader grants its source.

What it is: the credit of one link, from the number of messages and bytes in flight (received and not settled), the size of recent
messages, and how many may be redelivered after a crash of this process. What it is not: the link.
Spec: OASIS AMQP 1.0, 2.6.7 (flow control): credit counts deliveries of any size; bytes have to be estimated here.

Messages. A lease begins with FIRST_MESSAGES and doubles whenever as many as the window are settled: the messages that a crashed
process had in flight are delivered once more, and a message that crashes it affects only these. A plan of the driver
(`crash_search`) keeps the window small until a span of messages is settled.

Slow targets. The end of a lease waits for the messages in flight, and all routes of the query wait with it. So the window does not grow
to more messages than its target takes in `WORK_SECONDS`, and is halved where it contains more: down to FIRST_MESSAGES, or as many as
make up `LEAST_BYTES`.

Bytes. Credit is the number of messages that fit into the room, at the recent mean size or, if that is larger, at a part of the
recent maximum. Credit cannot be taken back when messages turn out larger, so `is_full` says when to stop reading the socket: the
peer's bytes then stay in the TCP buffers, and it stops sending. One message alone may have any size, or a message larger than the
limit would never move.

Invariants:
    I1. Before the size of a first message is known, credit is 1.
    I2. While other messages are in flight nothing is read beyond `nbytes`, plus or minus one read.
    I3. While nothing is in flight there is credit, and reading, for one message of any size.
    I4. Never more messages than the window may be in flight.
    I5. A change of the window is sent to the processes that rely on it before more messages can come.
    I6. Beyond FIRST_MESSAGES, or LEAST_BYTES, it holds no more messages than are settled in `WORK_SECONDS`, as far as earlier ones show.
"""

from __future__ import annotations

import math

__all__ = ["FIRST_MESSAGES", "LEAST_MESSAGES", "WORK_SECONDS", "CreditWindow"]

FIRST_MESSAGES = 256
# Far longer than a message is in flight where its target is fast, and short for the end of a lease.
WORK_SECONDS = 10.0
# Over a network on which so many take longer than that, it holds a few messages.
LEAST_BYTES = 1 << 20
LEAST_MESSAGES = 4
# Sizes of so many messages, and of as many before them, count as recent.
RECENT_MESSAGES = 1024
# One message in so many may have the maximum size without more than doubling the mean.
LARGEST_PART = 64


class CreditWindow:
    """The credit of one link.

    Args:
        messages: in flight at most.
        nbytes: in flight at most.
        grows: begin small; else the whole window applies at once (nothing is settled before the end of the batch).

    Attributes:
        limit: messages that may be in flight now.
    """

    def __init__(self, messages: int, nbytes: int, *, grows: bool = True) -> None:
        self.messages = messages
        self.nbytes = nbytes
        self.limit = min(messages, FIRST_MESSAGES) if grows else messages
        self._span = 0
        self._settled = 0
        self._seconds = 0.0  # in which these were settled, without those in which none was in flight
        self._settled_at = math.inf  # the last of them; infinite: none was in flight afterwards
        self._count = self._sum = self._largest = 0  # of recent messages
        self._sum_before = self._count_before = self._largest_before = 0

    def narrow(self, messages: int, span: int) -> None:
        """Keeps the window at so many until a span is settled; 0 leaves it as it is."""
        if messages:
            self.limit = min(self.limit, messages, self.messages)
            self._span = span
            self._settled, self._seconds = 0, 0.0

    def admit_another(self, outstanding: int) -> bool:
        """Admits one message besides those that their target refuses, to be tried ahead of them; returns whether the window grew."""
        if outstanding < self.limit or self.limit >= self.messages:
            return False
        self.limit += 1
        return True

    def came(self, count: int, nbytes: int, largest_bytes: int) -> None:
        """Messages were received."""
        if self._count >= RECENT_MESSAGES:
            self._count_before, self._sum_before, self._largest_before = self._count, self._sum, self._largest
            self._count = self._sum = self._largest = 0
        self._count += count
        self._sum += nbytes
        self._largest = max(self._largest, largest_bytes)

    def settled(self, count: int, outstanding: int, now: float) -> bool:
        """Messages were settled; returns whether the window has changed.

        Args:
            count: how many.
            outstanding: how many are still in flight.
            now: monotonic seconds.
        """
        self._seconds += max(0.0, now - self._settled_at)
        self._settled_at = now if outstanding else math.inf
        if self._span > 0:
            self._span -= count
            self._seconds = 0.0
            return False
        self._settled += count
        is_whole = self._settled >= self.limit
        if not is_whole and self._seconds < WORK_SECONDS:
            return False
        before, done, seconds = self.limit, self._settled, self._seconds
        self._settled, self._seconds = 0, 0.0
        if before < self._least:  # after a plan: a slow target is no reason to hold so few
            self.limit = min(self.messages, before * 2, self._least) if is_whole else before
        elif outstanding * seconds > WORK_SECONDS * done:
            self.limit = min(before, max(self._least, min(before, outstanding) // 2))
        elif is_whole and 2 * seconds <= WORK_SECONDS:
            self.limit = min(self.messages, before * 2)
        return self.limit != before

    @property
    def _least(self) -> int:
        """Messages that are admitted however slow their target is."""
        return min(FIRST_MESSAGES, max(LEAST_MESSAGES, LEAST_BYTES // max(1, self.message_bytes)))

    @property
    def message_bytes(self) -> int:
        """The assumed size of the next message; 0 before the first."""
        count = self._count + self._count_before
        if not count:
            return 0
        mean = (self._sum + self._sum_before) // count
        return max(1, mean, max(self._largest, self._largest_before) // LARGEST_PART)

    def credit(self, outstanding: int, outstanding_bytes: int) -> int:
        """How many messages may come now."""
        size = self.message_bytes
        if not size:
            return max(0, min(1, self.limit - outstanding))
        by_bytes = max(0, self.nbytes - outstanding_bytes) // size
        return max(0, min(self.limit - outstanding, by_bytes if outstanding else max(1, by_bytes)))

    def is_worth_granting(self, wanted: int, granted: int) -> bool:
        """Whether the credit should be set again; for each flow frame the peer searches for messages."""
        window = min(self.limit, max(1, self.nbytes // max(1, self.message_bytes)))
        return wanted > 0 and wanted - granted >= min(window // 4 + 1, wanted)

    def is_full(self, outstanding: int, outstanding_bytes: int, partial_bytes: int) -> bool:
        """Whether to read nothing for now.

        Args:
            outstanding: messages received and not settled.
            outstanding_bytes: their bytes.
            partial_bytes: of a message whose end has not arrived.
        """
        return outstanding > 0 and outstanding_bytes + partial_bytes >= self.nbytes
