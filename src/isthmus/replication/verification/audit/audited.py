"""A subscription while it is audited: which messages entered there, and which copies are there.

What it is: the account of one member's audited subscription, in numbers and digests; it keeps no message. What it is not: the reading
(`isthmus.replication.verification.audit.audit`), or the comparison (`isthmus.replication.verification.reconciliation.reconcile`).

Invariants:
    I1. A message that the first reading did not find did not enter; copies are also taken from the second reading.
    I2. Memory grows by about 160 bytes for each message, whatever its size.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from isthmus.amqp import section
from isthmus.connectors.servicebus.head import FRAGMENT_BITS, peeked_message
from isthmus.replication.verification.content import content_digest
from isthmus.replication.verification.identity import Identity
from isthmus.replication.verification.reconciliation.reading import Numbering, Reading

__all__ = ["Arrivals", "Audited", "Originals", "Selects"]

Selects = Callable[[bytes, Identity], str]
"""What a task does with a message that a publisher sent: empty where it replicates it, else the name of the count that the
message belongs to: `filtered`, `held_back`, `returned`, `stopped` or `incomparable`.
"""

# The longest time to live that a header can express (OASIS AMQP 1.0, 3.2.1: 32 bits of milliseconds).
_LONGEST_TTL_MS = 0xFFFFFFFF
# No clock of a namespace is set back by this much.
_APART_MS = 60_000


class Arrivals:
    """Copies of one origin's messages at one member, in its order.

    Attributes:
        numbers: sequence numbers at the origin.
        digests: of their content.
        ends_ms: when each expires; 0 where it does not.
        entered_ms: when each entered its origin, according to its provenance; 0 where that does not say.
        lanes: the scope in which each keeps its order: its partition at the member, or its session.
        first_pass: how many of them the first reading found.
        proofs: the digits of the message's digest at the origin; 0 where the copy has none.
        late: numbers of those that `isthmus redrive` has sent.
    """

    __slots__ = ("digests", "ends_ms", "entered_ms", "first_pass", "lanes", "late", "numbers", "proofs")

    def __init__(self) -> None:
        self.numbers: array[int] = array("q")
        self.digests: array[int] = array("Q")
        self.ends_ms: array[int] = array("q")
        self.entered_ms: array[int] = array("q")
        self.lanes: array[int] = array("Q")
        self.proofs: array[int] = array("I")
        self.first_pass = 0
        self.late: set[int] = set()

    def leave_former(self) -> None:
        """Leaves out copies of messages of an entity that was deleted and created again since: a number is never assigned later than a
        higher one, unless the numbering began again.
        """
        lowest: dict[int, int] = {}  # by partition, of what entered so much later
        timed = sorted((at for at, ms in enumerate(self.entered_ms) if ms), key=lambda at: self.entered_ms[at])
        later = len(timed)
        former: set[int] = set()
        for at in reversed(timed):
            while later and self.entered_ms[timed[later - 1]] >= self.entered_ms[at] + _APART_MS:
                later -= 1
                number = self.numbers[timed[later]]
                lowest[number >> FRAGMENT_BITS] = min(number, lowest.get(number >> FRAGMENT_BITS, number))
            number = self.numbers[at]
            if number >= lowest.get(number >> FRAGMENT_BITS, number + 1):
                former.add(at)
        if not former:
            return
        kept = [at for at in range(len(self.numbers)) if at not in former]
        self.first_pass = sum(at < self.first_pass for at in kept)
        for name in self.__slots__:
            values = getattr(self, name)
            if isinstance(values, array):
                setattr(self, name, array(values.typecode, [values[at] for at in kept]))


class Originals:
    """Messages that entered a member and that the task replicates, by sequence number."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._digests: array[int] = array("Q")
        self._enqueued_ms: array[int] = array("q")
        self._ends_ms: array[int] = array("q")

    def add(self, number: int, digest: int, enqueued_ms: int, ends_ms: int) -> None:
        """A message entered; `ends_ms` is 0 where it never expires."""
        self._index[number] = len(self._digests)
        self._digests.append(digest)
        self._enqueued_ms.append(enqueued_ms)
        self._ends_ms.append(ends_ms)

    def __contains__(self, number: int) -> bool:
        return number in self._index

    def digest(self, number: int) -> int:
        """The digest of its content."""
        return self._digests[self._index[number]]

    def enqueued_ms(self, number: int) -> int:
        """When it entered."""
        return self._enqueued_ms[self._index[number]]

    def times(self) -> Iterator[tuple[int, int]]:
        """Each number, and when it entered."""
        for number, at in self._index.items():
            yield number, self._enqueued_ms[at]

    def ends_ms(self, number: int) -> int:
        """When it expires; 0 where it does not."""
        return self._ends_ms[self._index[number]]


@dataclass(slots=True)
class Audited:
    """One member's subscription.

    Attributes:
        alias: of the member.
        entity: the subscription's path.
        marks: the properties that the task's rule sets on copies, or has set.
        selects: which messages the task replicates; None: all.
        is_origin: whether messages enter the task here.
        is_log: whether it is a log, e.g. a topic of Kafka.
        recorded: origins whose copies get their numbers later, by their content (`Recorded`).
        is_record: whether this entity is the record of such an origin.
        forwards: the origin whose messages the namespace itself forwards here, with the numbers that they have there; else empty.
        is_table: whether it is a table, which has the origin's numbers and none of its own.
        by_session: whether messages keep their order only within their session.
        first_pass: whether this is the first reading.
        numbering: of what was read.
        arrivals: by the origin's alias.
        own: sequence numbers of the originals, in order.
        originals: those messages.
        resent: by the former number of a dead letter that was sent again, its present number.
        kept: count's name → sequence numbers of what the task does not replicate.
        first_numbers: by partition, the lowest sequence number that a publisher's message has here.
        last_numbers: by partition, the highest, also of the second reading.
        begins: of a log, by partition, the first offset that exists or will exist, where that is known.
        messages: how many were read.
        contents: of a record, digest and number of all publishers' messages, also of the second reading.
        perishable: of a record, the messages with a time to live whose begin is not known.
    """

    alias: str
    entity: str
    marks: tuple[str, ...] = ()
    selects: Selects | None = None
    is_origin: bool = True
    is_log: bool = False
    recorded: Collection[str] = ()
    is_record: bool = False
    forwards: str = ""
    is_table: bool = False
    by_session: bool = False
    first_pass: bool = True
    numbering: Numbering = field(default_factory=Numbering)
    arrivals: dict[str, Arrivals] = field(default_factory=dict)
    own: list[int] = field(default_factory=list)
    originals: Originals = field(default_factory=Originals)
    resent: dict[int, int] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)
    first_numbers: dict[int, int] = field(default_factory=dict)
    last_numbers: dict[int, int] = field(default_factory=dict)
    begins: Mapping[int, int] = field(default_factory=dict)
    messages: int = 0
    contents: list[tuple[int, int]] = field(default_factory=list)
    perishable: set[int] = field(default_factory=set)
    _first_enqueued_ms: int = 0
    _first_ttl_ms: int = 0
    _shortest_ttl_ms: int = 0

    def __post_init__(self) -> None:
        self.numbering = Numbering(is_log=self.is_log)

    def take(self, message: bytes, identity: Identity) -> None:
        """A message was read."""
        self.messages += 1
        if not self._first_enqueued_ms or (self.is_log and self.numbering.is_new(identity.sequence)):
            # For a log, the values of the partition from which the most may have been removed.
            self._first_enqueued_ms = max(self._first_enqueued_ms, peeked_message(message).enqueued_ms)
            self._first_ttl_ms = _ttl_ms(message)
        if not self.is_table:
            self.numbering.add(identity.sequence)
        if identity.origin or self.forwards:
            arrivals = self.arrivals.setdefault(identity.origin or self.forwards, Arrivals())
            arrivals.numbers.append(-1 if identity.origin in self.recorded else identity.number)
            alias = identity.origin.partition("/")[0]
            made_id = f"{alias}/{identity.entity}/{identity.number}" if alias else ""
            arrivals.digests.append(content_digest(message, self.marks, made_id))
            arrivals.ends_ms.append(peeked_message(message).expires_at_ms)
            arrivals.entered_ms.append(identity.entered_ms)
            arrivals.lanes.append(_session_lane(message) if self.by_session else identity.sequence >> FRAGMENT_BITS)
            arrivals.proofs.append(identity.proof)
            arrivals.first_pass += self.first_pass
            if identity.is_late:
                arrivals.late.add(identity.number)
            return
        number, fragment = identity.number, identity.number >> FRAGMENT_BITS
        self.first_numbers[fragment] = min(self.first_numbers.get(fragment, number), number)
        self.last_numbers[fragment] = max(self.last_numbers.get(fragment, number), number)
        if self.is_record:
            self.contents.append((content_digest(message, self.marks), number))
        if self.first_pass and self.is_origin:
            self._enter(message, identity)

    def _enter(self, message: bytes, identity: Identity) -> None:
        kind = self.selects(message, identity) if self.selects is not None else ""
        if kind:
            self.kept.setdefault(kind, []).append(identity.number)
            return
        found = peeked_message(message)
        ttl_ms = _ttl_ms(message)
        if ttl_ms:
            self._shortest_ttl_ms = min(self._shortest_ttl_ms or ttl_ms, ttl_ms)
        if identity.resent:
            self.resent[identity.resent] = identity.number
        ends_ms = found.expires_at_ms if ttl_ms else 0
        if self.is_record and ttl_ms:
            self.perishable.add(identity.number)
            ends_ms = 0
        digest = self.contents[-1][0] if self.is_record else content_digest(message, self.marks)
        self.originals.add(identity.number, digest, found.enqueued_ms, ends_ms)
        self.own.append(identity.number)

    def begin_with(self, known: Collection[int]) -> None:
        """Sets apart what entered before the task began: what is before the first known number of its partition. In a partition
        with no known number, what was published before the first known number of any partition.

        Args:
            known: numbers that wait, were set aside, or are at a target.
        """
        first: dict[int, int] = {}
        for number in known:
            fragment = number >> FRAGMENT_BITS
            first[fragment] = min(first.get(fragment, number), number)
        times = [self.originals.enqueued_ms(number) for number in first.values() if number in self.originals]
        began_ms = min(times, default=None)
        earlier = [number for number in self.own if self._is_earlier(number, first, began_ms)]
        if earlier:
            removed = set(earlier)
            self.own = [number for number in self.own if number not in removed]
            self.kept.setdefault("earlier", []).extend(earlier)

    def _is_earlier(self, number: int, first: Mapping[int, int], began_ms: int | None) -> bool:
        at = first.get(number >> FRAGMENT_BITS)
        if at is not None:
            return number < at
        return began_ms is None or self.originals.enqueued_ms(number) < began_ms

    def has_emptied(self, number: int) -> bool:
        """Whether a number belongs to a partition of which nothing is left (in a log: nothing up to this number; else: no publisher's message) while other
        partitions have messages.
        """
        if number < 0:
            return False
        if self.is_log:
            return not self.numbering.reaches(number)
        return number >> FRAGMENT_BITS not in self.first_numbers and any(self.first_numbers)

    def is_resent(self, number: int) -> bool:
        """Whether this original entered again, with the same content."""
        again = self.resent.get(number, -1)
        return again in self.originals and self.originals.digest(again) == self.originals.digest(number)

    def reading(self, *, shared: bool, ttl_ms: int, read_ms: int) -> Reading:
        """What was read up to a wall time.

        A subscription's time to live is in the header of its messages. Where the oldest message has none, the subscription has
        none, whatever the file says: a subscription that existed before keeps the setting with which it was created.
        """
        if not self._first_ttl_ms and ttl_ms <= _LONGEST_TTL_MS:
            ttl_ms = 0
        emptied = [
            begin for number, begin in self.begins.items() if begin and self.numbering.is_new(number << FRAGMENT_BITS)
        ]
        return Reading(
            member=self.alias,
            entity=self.entity,
            messages=self.messages,
            absent_before=self.numbering.before + sum(emptied),
            absent_between=self.numbering.between,
            first_enqueued_ms=self._first_enqueued_ms,
            shared=shared,
            ttl_ms=ttl_ms,
            short_lived=0 < self._shortest_ttl_ms < ttl_ms,
            read_ms=read_ms,
            is_log=self.is_log,
            is_emptied=bool(emptied),
        )


def _ttl_ms(message: bytes) -> int:
    """The time to live that the message carries; 0 where it carries none."""
    return section.decode_header(message, section.locate(message).header).ttl_ms or 0


def _session_lane(message: bytes) -> int:
    """A number that identifies the message's session; 0 where it has none."""
    session_id = section.decode_properties(message, section.locate(message).properties).get("group_id")
    if not isinstance(session_id, str):
        return 0
    return int.from_bytes(hashlib.blake2b(session_id.encode(), digest_size=8).digest(), "big")
