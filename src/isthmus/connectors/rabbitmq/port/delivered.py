"""The messages that a source has delivered to its owner, and their recognition when the broker redelivers them.

What it is: positions, delivery tags and traits. RabbitMQ numbers no messages, and after a lost connection it redelivers every
unacknowledged message, marked as redelivered. Such a message is recognised by its contents: where its position is outstanding, its
new tag acknowledges it; where it was settled meanwhile, it is acknowledged at once. What it is not: duplicate detection: it exists as long as
the source, and checks only redelivered messages.

Order. Released messages are redelivered: by a classic queue at their former position, by a quorum queue in the order of their return. An
ordered source therefore returns all messages together, by closing its channel; those that it should not return are recognised when they are
redelivered, and not reported.

Why no message is lost by it. Messages with the same fingerprint are equal in every byte: exchange, routing key, properties, headers, body.
Each redelivery uses one entry: of equal messages, as many as were unacknowledged are reported. A message acknowledged shortly before
the loss is recognised only if it has a message-id: another message that is marked as redelivered may be equal in all else.

Invariants:
    I1. A message that was not marked as redelivered is always a new one.
    I2. At most one message is recognised per entry.
    I3. A message without message-id that was settled before the loss is not recognised, nor is any that was settled more than
        `REMEMBERED` messages before it.
    I4. However often the connection is lost, no more than `REMEMBERED` settled messages are known.
    I5. For a source that is read once, a message without message-id that was settled shortly before the loss is known to have been counted; so is one
        that was set aside. One that was released is known when it is redelivered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from isthmus.connectors.rabbitmq.mapping.fingerprint import Traits, fingerprint_of

__all__ = ["REMEMBERED", "Again", "Delivered", "Entry"]

Again = Literal["", "settled", "released"]
"""What became of a message before it was redelivered, its acknowledgement lost if it was settled; empty: unknown."""

# Written acknowledgements may not have reached the broker: those in the buffers of two sockets.
REMEMBERED = 20_000


class Entry(NamedTuple):
    """A message that was delivered to the owner.

    Attributes:
        position: its position.
        tag: of its delivery in the present channel; 0: it was delivered in an earlier one.
        traits: its contents.
        is_named: whether it has a message-id.
    """

    position: int
    tag: int
    traits: Traits
    is_named: bool = True


class Delivered:
    """The account of one source.

    Args:
        is_counting: whether the source counts the messages that arrive (I5).
    """

    def __init__(self, *, is_counting: bool = False) -> None:
        self._outstanding: dict[int, Entry] = {}
        self._settled: deque[Entry] = deque(maxlen=REMEMBERED)
        self._known: dict[int, deque[Entry]] = {}
        self._due: set[int] = set()
        # Messages that were acknowledged and are not recognised: without message-id, or set aside.
        self._unknown: deque[Traits] = deque(maxlen=REMEMBERED if is_counting else 0)
        self._aside: dict[int, Traits] = {}  # by tag, those that may be
        self._counted: Counter[int] = Counter()  # those before the last losses, by fingerprint
        self._released: Counter[int] = Counter()  # messages that return, by fingerprint

    def __len__(self) -> int:
        return len(self._outstanding)

    @property
    def is_waiting(self) -> bool:
        """Whether messages of an earlier channel may be redelivered, so that they can be acknowledged."""
        return bool(self._known)

    @property
    def is_owed(self) -> bool:
        """Whether some were settled while they could not be acknowledged: otherwise the next source would receive them."""
        return not self._due <= self._outstanding.keys()

    @property
    def attached(self) -> int:
        """Outstanding messages that the present channel has delivered."""
        return sum(1 for each in self._outstanding.values() if each.tag)

    def add(self, entry: Entry) -> None:
        """Adds a message that is delivered to the owner."""
        self._outstanding[entry.position] = entry

    def recognised(self, traits: Traits) -> Entry | None:
        """The entry of a redelivered message; None: it is a new one."""
        if not self._known:
            return None
        fingerprint = fingerprint_of(traits)
        found = self._known.get(fingerprint)
        if not found:
            return None
        entry = found.popleft()
        if not found:
            del self._known[fingerprint]
        return entry

    def attach(self, entry: Entry, tag: int) -> bool:
        """A recognised message was redelivered; returns whether it is still outstanding."""
        self._due.discard(entry.position)
        if entry.position in self._outstanding:
            self._outstanding[entry.position] = entry._replace(tag=tag)
            return True
        self._settled.append(entry)  # its acknowledgement may be lost as well
        return False

    def settle(self, first: int, last: int) -> list[int]:
        """Settles positions; returns their tags, where they have one."""
        tags = []
        for entry in self._take(first, last):
            if entry.tag:
                tags.append(entry.tag)
                if entry.is_named:
                    self._settled.append(entry)
                else:
                    self._unknown.append(entry.traits)
        return tags

    def take(self, first: int, last: int, *, is_release: bool = False) -> list[Entry]:
        """Positions are released, or set aside: they are forgotten."""
        entries = list(self._take(first, last))
        gone = {entry.position for entry in entries if not entry.tag}
        if gone:
            self._due -= gone
            self._forget(gone)
        if self._unknown.maxlen:
            returned = [entry for entry in entries if is_release or not entry.tag]
            self._released.update(fingerprint_of(entry.traits) for entry in returned)
            self._aside |= {entry.tag: entry.traits for entry in entries if entry.tag and not is_release}
        return entries

    def stored(self, tags: Sequence[int]) -> Sequence[int]:
        """The copies of deliveries that were set aside are stored, or the broker makes them; returns their tags, which are acknowledged, or rejected."""
        self._unknown.extend(self._aside.pop(tag) for tag in tags if tag in self._aside)
        return tags

    def _take(self, first: int, last: int) -> Iterator[Entry]:
        outstanding = self._outstanding
        if last - first < len(outstanding):
            for position in range(first, last + 1):
                entry = outstanding.pop(position, None)
                if entry is not None:
                    yield entry
        else:
            for position in sorted(each for each in outstanding if first <= each <= last):
                yield outstanding.pop(position)

    def _forget(self, positions: set[int]) -> None:
        for fingerprint, entries in list(self._known.items()):
            left = deque(each for each in entries if each.position not in positions)
            if left:
                self._known[fingerprint] = left
            else:
                del self._known[fingerprint]

    def again(self, traits: Traits) -> Again:
        """What became of an unknown message that is redelivered, as far as it is known (I5)."""
        if not self._released and not self._counted:
            return ""
        fingerprint = fingerprint_of(traits)
        if messages := self._released.pop(fingerprint, 0):  # first: one that was settled may be gone
            if messages > 1:
                self._released[fingerprint] = messages - 1
            return "released"
        is_counted = self._counted[fingerprint] > 0
        self._counted[fingerprint] -= is_counted
        return "settled" if is_counted else ""

    def lost(self, *, is_recall: bool = False) -> None:
        """The connection is lost: its deliveries may be redelivered. `is_recall`: only its channel is closed, after all acknowledgements, unless the
        connection is lost meanwhile.
        """
        if len(self._counted) > REMEMBERED:
            self._counted.clear()
        if not is_recall:
            self._counted += Counter(map(fingerprint_of, self._unknown))
            self._unknown.clear()
        self._aside.clear()
        outstanding = {position: entry._replace(tag=0) for position, entry in self._outstanding.items()}
        prints = {each.position: print_ for print_, entries in self._known.items() for each in entries}
        before = (each for entries in self._known.values() for each in entries)
        settled = {each.position: each for each in (*before, *self._settled) if each.position not in outstanding}
        newest = [settled[position] for position in sorted(settled)[-REMEMBERED:]]
        self._outstanding, self._known = outstanding, {}
        # Outstanding ones first: of equal messages the broker may have deleted the settled ones.
        for entry in (*outstanding.values(), *newest):
            fingerprint = prints.get(entry.position) or fingerprint_of(entry.traits)
            self._known.setdefault(fingerprint, deque()).append(entry._replace(tag=0))
        self._due = (self._due & {each.position for each in newest}) | outstanding.keys()
        self._settled.clear()
