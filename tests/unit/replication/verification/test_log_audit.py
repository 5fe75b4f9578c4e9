"""Verification of flows from and to logs: records and messages in memory, made by the mapping and the rewriter of the real routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.mapping.mapping import Record, to_message, to_record
from isthmus.connectors.kafka.mapping.message_id import MessageIds
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.errors import EntityNotFoundError
from isthmus.replication.verification.audit import audit
from isthmus.replication.verification.count import Verdict
from isthmus.replication.verification.identity import Identity, Members, identify
from isthmus.replication.verification.log_audit import placed
from isthmus.replication.verification.reconcile import Reconciliation
from isthmus.replication.verification.verify import ground_of
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
        self.held: dict[Endpoint, dict[int, bytes]] = {HUB: {}, LAKE: {}, QUEUE: {}}
        self.committed: dict[int, int] = {}
        self.dead: list[Identity] = []
        self.is_known = True
        (self.route,) = routes(self.federation)
        self.rewriter = MessageRewriter(
            str(self.route.source), self.route.target.alias, origin_namespace=self.route.source.alias
        )

    def publish(self, partition: int, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            at = position(partition, offset)
            record = Record(b"%d" % at, b"key-%d" % partition, [("n", b"1")], 1000 + offset, partition)
            self.held[HUB][at] = MessageIds("flights").add(to_message(record, at), at)

    def send(self, number: int) -> None:
        self.held[QUEUE][number] = section.encode_message(
            b"%d" % number,
            annotations=_numbered(number) | {Symbol("x-opt-partition-key"): f"p{number % 2}"},
            properties={"message_id": f"m{number}"},
            application_properties={"n": Long(number)},
        )

    def move(self, *numbers: int) -> None:
        """Copies messages in this order."""
        source, target = self.held[self.route.source], self.held[self.route.target]
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
        if endpoint not in self.held:
            raise EntityNotFoundError(str(endpoint))

        def look(at: int, count: int) -> Sequence[bytes]:
            limit = starts or {}
            held = self.held[endpoint]
            return [
                held[each]
                for each in sorted(held)
                if each >= at and each % (1 << PARTITION_SHIFT) >= limit.get(each >> PARTITION_SHIFT, 0)
            ][:count]

        return look

    def waiting(self, route: Route) -> object:
        return self.open(route.source, self.committed)

    def is_placed(self, route: Route) -> bool:
        return self.is_known

    def set_aside(self, route: Route) -> Iterator[Identity]:
        yield from self.dead

    def verify(self) -> Reconciliation:
        declared = flows(self.federation.tasks["t"])
        ground = ground_of(declared, {self.route.name: self.route})
        return audit(
            "t",
            [self.route],
            ground.places,
            self.open,  # type: ignore[arg-type]
            passages=ground.passages,
            shared=ground.shared,
            members=Members({(each.alias, each.entity): label for each, label in ground.origins.items()}),
            clock=ManualClock(10_000_000),
            logs={
                label: end == self.route.source and self.route.options.start == "now"
                for label, end in ground.places.items()
                if end != QUEUE
            },
            log_reader=self,  # type: ignore[arg-type]
        )


def _numbered(number: int) -> dict[object, object]:
    return {Symbol("x-opt-sequence-number"): Long(number), Symbol("x-opt-enqueued-time"): Timestamp(1000 + number)}


def counts(result: Reconciliation, *names: str) -> dict[str, int]:
    return {name: result.total(name) for name in names}


def test_every_record_stands_in_the_queue_waits_or_was_set_aside() -> None:
    systems = Systems(STREAM % "existing")
    systems.publish(0, 0, 4)
    systems.publish(1, 0, 4)
    # Partitions are moved by turns: they have no order among each other.
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


def test_what_is_missing_doubled_or_out_of_order_is_told() -> None:
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
    systems.move(*sorted(systems.held[HUB]))
    result = systems.verify()
    assert result.doubts == ()
    assert result.clean, result.to_dict()
    systems.held[LAKE].pop(position(1, 2))
    assert systems.verify().verdict is Verdict.FAULTY


def test_what_stood_before_the_task_began_is_not_missed() -> None:
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


def test_what_waits_is_not_known_where_the_group_has_no_offsets() -> None:
    """Checkpoints in a folder of another machine: all that is missing would wait."""
    systems = Systems(MIRROR)
    systems.publish(0, 0, 9)
    systems.move(*(position(0, offset) for offset in range(5)))
    assert systems.verify().clean
    systems.is_known = False
    result = systems.verify()
    assert result.verdict is Verdict.UNCLEAR
    assert "has no offsets, or its checkpoints are not in reach here" in result.doubts[0]


def test_where_the_task_has_met_nothing_it_is_not_known_what_was_before_it_began() -> None:
    """The offsets of its group were set to the end: all that was published since `apply` is passed over."""
    systems = Systems(STREAM % "now")
    systems.publish(0, 0, 9)
    systems.committed = {0: 10, 1: 0}
    result = systems.verify()
    assert counts(result, "earlier", "entered") == {"earlier": 10, "entered": 0}
    assert result.verdict is Verdict.UNCLEAR
    assert "is not known to have met any record of flights at hub" in result.doubts[0]


def test_a_queue_that_is_emptied_into_a_stream_is_told_by_its_numbers() -> None:
    systems = Systems(OUT)
    for number in range(1, 9):
        systems.send(number)
    systems.move(1, 2, 3, 4, 6)
    for number in (1, 2, 3, 4, 5, 6):
        del systems.held[QUEUE][number]
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
    systems.move(*sorted(systems.held[HUB]))
    opened = systems.open

    def open_then_enter(endpoint: Endpoint, starts: dict[int, int] | None = None) -> object:
        look = opened(endpoint, starts)

        def late(at: int, count: int) -> Sequence[bytes]:
            if endpoint == LAKE and position(0, 2) not in systems.held[HUB]:
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
