"""Verification of flows from and to logs: records and messages in memory, made by the mapping and the rewriter of the real routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.mapping.mapping import Record, to_message, to_record
from isthmus.connectors.kafka.mapping.message_id import MessageIds
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.connectors.system import removed_before
from isthmus.errors import EntityNotFoundError
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.audit.log_audit import placed
from isthmus.replication.verification.ground import ground_of
from isthmus.replication.verification.identity import Identity, Members, identify
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.testing.clock import ManualClock
from isthmus.topology import read
from isthmus.topology.model import Endpoint, Route
from isthmus.topology.route import flows, routes

HEAD = (
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n"
    "  hub: {kind: kafka, bootstrap: 'a:1'}\n  lake: {kind: kafka, bootstrap: 'b:1'}\ntasks:\n  t: "
)
STREAM = "{pattern: stream-to-queue, source: hub, stream: flights, target: ewr, queue: orders, start: %s}"
MIRROR = "{pattern: copy, source: hub, topic: flights, target: lake, start: existing}"
OUT = "{pattern: queue-to-stream, source: ewr, queue: orders, target: lake, stream: flights}"
HUB, LAKE, QUEUE = Endpoint("hub", "flights"), Endpoint("lake", "flights"), Endpoint("ewr", "orders")


def position(partition: int, offset: int) -> int:
    return partition << PARTITION_SHIFT | offset


class Systems:
    """A stream of two partitions at `hub`, one at `lake`, and a queue; records bear their time of publishing."""

    def __init__(self, task: str) -> None:
        self.federation = read(HEAD + task)
        self.contents: dict[Endpoint, dict[int, bytes]] = {HUB: {}, LAKE: {}, QUEUE: {}}
        self.committed: dict[int, int] = {}
        self.dead: list[Identity] = []
        self.is_known = True
        self.begins: dict[int, int] = {}
        (self.route,) = routes(self.federation)
        self.rewriter = MessageRewriter(
            str(self.route.source), self.route.target.alias, origin_namespace=self.route.source.alias
        )

    def publish(self, partition: int, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            at = position(partition, offset)
            record = Record(b"%d" % at, b"key-%d" % partition, [("n", b"1")], 1000 + offset, partition)
            self.contents[HUB][at] = MessageIds("flights").add(to_message(record, at), at)

    def send(self, number: int) -> None:
        self.contents[QUEUE][number] = section.encode_message(
            b"%d" % number,
            annotations=_numbered(number) | {Symbol("x-opt-partition-key"): f"p{number % 2}"},
            properties={"message_id": f"m{number}"},
            application_properties={"n": Long(number)},
        )

    def move(self, *numbers: int) -> None:
        """Copies messages in this order."""
        source, target = self.contents[self.route.source], self.contents[self.route.target]
        for number in numbers:
            copy = self.rewriter.copy(source[number], 0)
            assert isinstance(copy, bytes)
            if self.route.target == LAKE:
                record = to_record(copy)
                partition = number >> PARTITION_SHIFT if self.route.source == HUB else number % 2
                at = position(partition, sum(each >> PARTITION_SHIFT == partition for each in target))
                target[at] = to_message(record._replace(partition=partition), at)
            else:
                found = section.locate(copy)
                annotations = section.decode_map(copy, found.message_annotations) | _numbered(len(target) + 1)
                start, end = found.message_annotations
                whole = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)
                target[len(target) + 1] = copy[:start] + whole + copy[end:]

    def open(self, endpoint: Endpoint, starts: dict[int, int] | None = None) -> object:
        if endpoint not in self.contents:
            raise EntityNotFoundError(str(endpoint))

        def look(at: int, count: int) -> Sequence[bytes]:
            limit = starts or {}
            contents = self.contents[endpoint]
            return [
                contents[each]
                for each in sorted(contents)
                if each >= at and each % (1 << PARTITION_SHIFT) >= limit.get(each >> PARTITION_SHIFT, 0)
            ][:count]

        if endpoint == LAKE:
            look.begins = lambda: self.begins  # type: ignore[attr-defined]
        return look

    def waiting(self, route: Route) -> object:
        look = self.open(route.source, self.committed)
        begins: dict[int, int] = {}
        for at in self.contents[route.source]:
            partition, offset = at >> PARTITION_SHIFT, at % (1 << PARTITION_SHIFT)
            begins[partition] = min(offset, begins.get(partition, offset))
        look.removed = removed_before(begins, self.committed)  # type: ignore[attr-defined]
        return look

    def is_placed(self, route: Route) -> bool:
        return self.is_known

    def set_aside(self, route: Route) -> Iterator[Identity]:
        yield from self.dead

    def verify(self) -> Reconciliation:
        declared = flows(self.federation.tasks["t"])
        ground = ground_of(declared, {self.route.name: self.route})
        result = audit(
            "t",
            [self.route],
            ground.entities,
            self.open,  # type: ignore[arg-type]
            passages=ground.passages,
            shared=ground.shared,
            members=Members({(each.alias, each.entity): label for each, label in ground.origins.items()}),
            clock=ManualClock(10_000_000),
            logs={
                label: end == self.route.source and self.route.options.start == "now"
                for label, end in ground.entities.items()
                if end != QUEUE
            },
            log_reader=self,  # type: ignore[arg-type]
            by_hour=True,
        )
        for each in result.comparisons:
            sums = {kind: sum(hour.counts[kind] for hour in each.hours or ()) for kind in each.counts}
            assert sums == each.counts
        return result


def _numbered(number: int) -> dict[object, object]:
    return {Symbol("x-opt-sequence-number"): Long(number), Symbol("x-opt-enqueued-time"): Timestamp(1000 + number)}


def counts(result: Reconciliation, *names: str) -> dict[str, int]:
    return {name: result.total(name) for name in names}


def test_every_record_is_in_the_queue_waits_or_was_set_aside() -> None:
    systems = Systems(STREAM % "existing")
    systems.publish(0, 0, 4)
    systems.publish(1, 0, 4)
    # Partitions are moved alternately: there is no order between them.
    systems.move(position(1, 0), position(0, 0), position(1, 1), position(0, 1), position(0, 2))
    systems.committed = {0: 3, 1: 3}
    systems.dead = [Identity(position(1, 2), "", "", position(1, 2), "Odd")]
    result = systems.verify()
    assert counts(result, "entered", "arrived", "waiting", "dead_lettered", "lost", "out_of_order", "unequal") == {
        "entered": 10,
        "arrived": 5,
        "waiting": 4,
        "dead_lettered": 1,
        "lost": 0,
        "out_of_order": 0,
        "unequal": 0,
    }


def test_what_is_missing_doubled_or_out_of_order_is_reported() -> None:
    systems = Systems(MIRROR)
    systems.publish(0, 0, 3)
    systems.publish(1, 0, 1)
    systems.committed = {0: 4, 1: 2}
    systems.move(position(0, 0), position(0, 3), position(0, 1), position(1, 0), position(1, 0))
    result = systems.verify()
    assert counts(result, "entered", "arrived", "lost", "duplicated", "out_of_order") == {
        "entered": 6,
        "arrived": 4,
        "lost": 2,
        "duplicated": 1,
        "out_of_order": 1,
    }
    (pair,) = [each for each in result.comparisons if each.origin != each.member]
    assert pair.samples["lost"] == (position(0, 2), position(1, 1))


def test_a_mirror_that_has_everything_is_clean() -> None:
    systems = Systems(MIRROR)
    systems.publish(0, 5, 9)  # what was before has been removed
    systems.publish(1, 0, 3)
    systems.committed = {0: 10, 1: 4}
    systems.move(*sorted(systems.contents[HUB]))
    result = systems.verify()
    assert result.doubts == ()
    assert result.clean, result.to_dict()
    systems.contents[LAKE].pop(position(1, 2))
    assert systems.verify().verdict is Verdict.FAULTY


def test_what_was_there_before_the_task_began_is_not_missed() -> None:
    systems = Systems(STREAM % "now")
    systems.publish(0, 0, 9)
    systems.publish(1, 0, 9)
    systems.move(position(0, 6), position(0, 7), position(0, 9))
    systems.committed = {0: 10, 1: 10}
    result = systems.verify()
    # Of partition 1 nothing is known: what was published since the first record that is known counts.
    assert counts(result, "earlier", "entered", "lost", "consumed") == {
        "earlier": 12,
        "entered": 8,
        "lost": 0,
        "consumed": 5,
    }


def test_what_the_retention_of_the_target_has_emptied_is_not_lost() -> None:
    """Nothing is left of the partition that could show how old what was removed there was."""
    systems = Systems(MIRROR)
    systems.publish(0, 0, 9)
    systems.publish(1, 0, 3)
    systems.committed = {0: 10, 1: 4}
    systems.move(*sorted(systems.contents[HUB]))
    for offset in range(10):
        del systems.contents[LAKE][position(0, offset)]
    systems.begins = {0: 10, 1: 0}
    result = systems.verify()
    assert counts(result, "lost", "consumed") == {"lost": 0, "consumed": 10}
    assert result.verdict is Verdict.UNCLEAR
    systems.begins = {0: 0, 1: 0}
    assert counts(systems.verify(), "lost") == {"lost": 10}


def test_what_waits_is_not_known_where_the_group_has_no_offsets() -> None:
    """Checkpoints in a folder of another machine: all that is missing would wait."""
    systems = Systems(MIRROR)
    systems.publish(0, 0, 9)
    systems.move(*(position(0, offset) for offset in range(5)))
    assert systems.verify().clean
    systems.is_known = False
    result = systems.verify()
    assert result.verdict is Verdict.UNCLEAR
    assert "has no offsets, or its checkpoints cannot be read here" in result.doubts[0]


def test_i4_what_the_retention_removed_while_a_route_was_stopped_is_no_clean_proof() -> None:
    systems = Systems(MIRROR)
    systems.publish(0, 0, 9)
    systems.publish(1, 0, 3)
    systems.move(*(position(0, offset) for offset in range(3)), *(position(1, offset) for offset in range(4)))
    systems.committed = {0: 3, 1: 4}
    assert systems.verify().clean
    for offset in range(6):
        del systems.contents[HUB][position(0, offset)]
    result = systems.verify()
    assert result.verdict is Verdict.UNCLEAR
    assert result.doubts == (
        f"partition 0 of hub/flights: the records from 3 to 5 were removed before {systems.route.name} had moved them",
    )


def test_copies_of_a_partition_that_the_retention_has_emptied_are_not_forged() -> None:
    systems = Systems(MIRROR)
    systems.publish(0, 0, 3)
    systems.publish(1, 0, 3)
    systems.committed = {0: 4, 1: 4}
    systems.move(*sorted(systems.contents[HUB]))
    for offset in range(4):
        del systems.contents[HUB][position(1, offset)]
    result = systems.verify()
    assert result.total("forged") == 0
    assert result.clean, result.to_dict()
    systems.publish(1, 4, 4)
    systems.move(position(1, 4))
    systems.committed[1] = 5
    assert systems.verify().clean


def test_i4_where_nothing_of_a_log_is_known_to_have_been_moved_nothing_is_proved() -> None:
    """Not even the first record that the task has to move is known: all may be lost."""
    systems = Systems(STREAM % "now")
    assert not systems.verify().clean, "there is nothing to compare"
    systems.publish(0, 0, 9)
    systems.committed = {0: 10}
    result = systems.verify()
    assert result.total("earlier") == 10
    assert result.verdict is Verdict.UNCLEAR
    assert any("is not known" in each for each in result.doubts)
    systems.move(position(0, 9))
    assert systems.verify().clean


def test_a_queue_that_is_emptied_into_a_stream_is_reported_by_its_numbers() -> None:
    systems = Systems(OUT)
    for number in range(1, 9):
        systems.send(number)
    systems.move(1, 2, 3, 4, 6)
    for number in (1, 2, 3, 4, 5, 6):
        del systems.contents[QUEUE][number]
    result = systems.verify()
    assert counts(result, "entered", "arrived", "waiting", "lost", "out_of_order") == {
        "entered": 8,
        "arrived": 5,
        "waiting": 2,
        "lost": 1,
        "out_of_order": 0,
    }


def test_a_record_that_enters_during_the_reading_is_no_forgery() -> None:
    systems = Systems(MIRROR)
    systems.publish(0, 0, 1)
    systems.publish(1, 0, 4)
    systems.committed = {0: 2, 1: 5}
    systems.move(*sorted(systems.contents[HUB]))
    opened = systems.open

    def open_then_enter(endpoint: Endpoint, starts: dict[int, int] | None = None) -> object:
        look = opened(endpoint, starts)

        def late(at: int, count: int) -> Sequence[bytes]:
            if endpoint == LAKE and position(0, 2) not in systems.contents[HUB]:
                systems.publish(0, 2, 2)
                systems.move(position(0, 2))
                systems.committed[0] = 3
            found: Sequence[bytes] = look(at, count)  # type: ignore[operator]
            return found

        return late

    systems.open = open_then_enter  # type: ignore[method-assign]
    result = systems.verify()
    assert result.clean, result.to_dict()


@pytest.mark.parametrize(
    ("place", "number"), [("flights/1/7", position(1, 7)), ("others/1/7", None), ("flights/x/7", None), ("", None)]
)
def test_i1_a_dead_letter_is_that_of_the_log_that_it_names(place: str, number: int | None) -> None:
    record = Record(b"x", None, [(DEAD_LETTER_PLACE, place.encode()), (DEAD_LETTER_REASON, b"Odd")], 1, 0)
    found = placed(to_message(record, 0), "flights")
    assert (None if found is None else (found.number, found.reason)) == (None if number is None else (number, "Odd"))
    assert identify(to_message(record, 3)).sequence == 3


PARTITIONS = st.integers(0, 1)


class LogAudit(RuleBasedStateMachine):
    """A route reads two partitions in order, commits behind what it has done with, and may be killed; faults lose records."""

    @initialize(is_mirror=st.booleans(), begins_now=st.booleans())
    def begin(self, is_mirror: bool, begins_now: bool) -> None:
        self.begins_now = begins_now and not is_mirror
        self.systems = Systems(MIRROR if is_mirror else STREAM % ("now" if begins_now else "existing"))
        self.end = {0: 0, 1: 0}
        self.began = {0: 0, 1: 0}
        self.read = {0: 0, 1: 0}
        self.low = {0: 0, 1: 0}
        self.lost: set[int] = set()
        self.unread: set[int] = set()
        self.moved: set[int] = set()
        self.doubled = False
        self.is_begun = not self.begins_now
        if self.is_begun:
            self.systems.committed = {0: 0, 1: 0}

    @rule(partition=PARTITIONS, count=st.integers(1, 4))
    def publish(self, partition: int, count: int) -> None:
        first = self.end[partition]
        self.systems.publish(partition, first, first + count - 1)
        self.end[partition] += count

    @rule()
    def apply(self) -> None:
        if not self.is_begun:
            self.is_begun = True
            self.began = dict(self.end)
            self.read = dict(self.end)
            self.systems.committed = dict(self.end)

    @rule(partition=PARTITIONS, count=st.integers(1, 3))
    def move(self, partition: int, count: int) -> None:
        self._go_on(partition, count, "")

    @rule(partition=PARTITIONS, count=st.integers(1, 3), kind=st.sampled_from(["lose", "dead"]))
    def fail(self, partition: int, count: int, kind: str) -> None:
        self._go_on(partition, count, kind)

    def _go_on(self, partition: int, count: int, kind: str) -> None:
        if not self.is_begun:
            return
        self.read[partition] = max(self.read[partition], self.low[partition])
        while count and self.read[partition] < self.end[partition]:
            at = position(partition, self.read[partition])
            self.read[partition] += 1
            count -= 1
            if kind == "lose":
                if at not in self.moved:
                    self.lost.add(at)
            elif kind == "dead":
                self.systems.dead.append(Identity(at, "", "", at, "Odd"))
            else:
                self.doubled |= at in self.moved
                self.moved.add(at)
                self.systems.move(at)

    @rule(partition=PARTITIONS)
    def commit(self, partition: int) -> None:
        if self.is_begun:
            self.systems.committed[partition] = self.read[partition]

    @rule()
    def kill(self) -> None:
        """What was not committed is read again."""
        for partition, offset in self.systems.committed.items():
            self.read[partition] = offset
            self.lost -= {
                at for at in self.lost if at >= position(partition, offset) and at >> PARTITION_SHIFT == partition
            }

    @rule(partition=PARTITIONS, count=st.integers(1, 3))
    def remove(self, partition: int, count: int) -> None:
        """The retention of the source; a segment is left."""
        low = min(self.low[partition] + count, max(0, self.end[partition] - 1))
        for offset in range(self.low[partition], low):
            at = position(partition, offset)
            del self.systems.contents[HUB][at]
            self.lost.discard(at)
            if self.is_begun and offset >= self.systems.committed[partition]:
                self.unread.add(at)
        self.low[partition] = low
        if self.is_begun:
            self.unread = {
                at for at in self.unread if at % (1 << PARTITION_SHIFT) >= self.systems.committed[at >> PARTITION_SHIFT]
            }

    @invariant()
    def judges(self) -> None:
        if not hasattr(self, "systems") or not self.systems.contents[HUB]:
            return
        if self.begins_now and not self.is_begun:
            return
        result = self.systems.verify()
        committed = self.systems.committed
        lost = {at for at in self.lost if at % (1 << PARTITION_SHIFT) < committed[at >> PARTITION_SHIFT]}
        if self.begins_now:
            known = self.moved | {each.number for each in self.systems.dead}
            waits = {
                at
                for at in self.systems.contents[HUB]
                if at % (1 << PARTITION_SHIFT) >= committed[at >> PARTITION_SHIFT]
            }
            first = {
                p: min((at for at in known | waits if at >> PARTITION_SHIFT == p), default=1 << 62) for p in (0, 1)
            }
            lost = {at for at in lost if at > first[at >> PARTITION_SHIFT]}
        unread = {
            at
            for p in (0, 1)
            for at in range(position(p, committed[p]), position(p, max(committed[p], self.low[p])))
            if at % (1 << PARTITION_SHIFT) >= self.began[p]
        }
        if lost or unread:
            assert result.verdict is not Verdict.CLEAN, (lost, unread, result.to_dict())
        if lost and not unread:
            assert result.total("lost") or result.total("consumed"), result.to_dict()
        may_be_clean = not (self.doubled or self.begins_now or self.lost or unread or self.systems.dead)
        if may_be_clean:
            assert result.verdict is Verdict.CLEAN, result.to_dict()


TestLogAudit = LogAudit.TestCase
TestLogAudit.settings = settings(max_examples=25, stateful_step_count=25)
