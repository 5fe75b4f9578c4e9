"""How much a reader lets its source send.

What it is: the credit of one link, from how many messages and bytes are under way (received and not settled), how large recent
messages were, and how many may be lost to the death of this process. What it is not: the link.
Spec: OASIS AMQP 1.0, 2.6.7 (flow control): credit counts deliveries, whatever their size; bytes have to be reckoned here.

Messages. A lease begins with FIRST_MESSAGES and doubles whenever as many as the window are settled: what a dead process had
under way is delivered once more than it need be, and a message that kills it takes only these with it. A plan of the driver
(`crash_search`) keeps the window small until a span of messages is settled.

Bytes. Credit is what the room takes of messages of the recent mean, or of a part of the recent maximum if that is more. What
was granted cannot be taken back from messages that turn out larger; so `is_full` says when to stop reading the socket, which
the peer sees as a full pipe, and what it has sent stays there. One message alone may be as large as it likes, or nothing
that is larger than the bound would ever move.

Invariants:
    I1. Before the first message has told a size, credit is 1.
    I2. While other messages are under way nothing is read beyond `nbytes`, give or take one read.
    I3. While nothing is under way there is credit, and reading, for one message of any size.
    I4. Never more messages than the window may be under way.
    I5. The window in force is told to whoever counts on it before more than that can come.
"""

from __future__ import annotations

__all__ = ["FIRST_MESSAGES", "CreditWindow"]

FIRST_MESSAGES = 256
# Sizes of so many messages, and of as many before them, count as recent.
RECENT_MESSAGES = 1024
# One message in so many may be as large as the largest without more than doubling the mean.
LARGEST_PART = 64


class CreditWindow:
    """The credit of one link.

    Args:
        messages: under way at most.
        nbytes: under way at most.
        grows: begin small; else the whole window holds at once (nothing is settled before the end of the batch).

    Attributes:
        limit: messages that may be under way now.
    """

    def __init__(self, messages: int, nbytes: int, *, grows: bool = True) -> None:
        self.messages = messages
        self.nbytes = nbytes
        self.limit = min(messages, FIRST_MESSAGES) if grows else messages
        self._span = 0
        self._settled = 0
        self._count = self._sum = self._largest = 0  # of recent messages
        self._sum_before = self._count_before = self._largest_before = 0

    def narrow(self, messages: int, span: int) -> None:
        """Keeps the window at so many until a span is settled; 0 leaves it as it is."""
        if messages:
            self.limit = min(self.limit, messages, self.messages)
            self._span = span
            self._settled = 0

    def admit_another(self, outstanding: int) -> bool:
        """Lets one come beside messages that their target refuses, to be tried ahead of them; whether the window grew."""
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

    def settled(self, count: int) -> bool:
        """Messages were settled; whether the window grew."""
        if self._span > 0:
            self._span -= count
            return False
        if self.limit >= self.messages:
            return False
        self._settled += count
        if self._settled < self.limit:
            return False
        self._settled = 0
        self.limit = min(self.messages, self.limit * 2)
        return True

    @property
    def message_bytes(self) -> int:
        """What the next message is taken to have; 0 before the first."""
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
        """Whether the credit should be set again; each flow frame costs the peer a look for messages."""
        window = min(self.limit, max(1, self.nbytes // max(1, self.message_bytes)))
        return wanted > 0 and wanted - granted >= min(window // 4 + 1, wanted)

    def is_full(self, outstanding: int, outstanding_bytes: int, partial_bytes: int) -> bool:
        """Whether to read nothing for now.

        Args:
            outstanding: messages received and not settled.
            outstanding_bytes: their bytes.
            partial_bytes: what has come of a message whose end has not.
        """
        return outstanding > 0 and outstanding_bytes + partial_bytes >= self.nbytes
