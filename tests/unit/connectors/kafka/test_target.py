"""isthmus.connectors.kafka.target: the events for the delivery machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.kafka.cluster import TopicView, refusal_of
from isthmus.connectors.kafka.mapping.mapping import Record, to_message
from isthmus.connectors.kafka.option import read_target
from isthmus.connectors.kafka.producer import Answer, ProducerThread
from isthmus.connectors.kafka.target import CREDIT, KafkaTarget
from isthmus.errors import InvalidArgumentError
from isthmus.message.copy_policy import CopyPolicy

BUSY = Refusal(RefusalKind.BLOCKED, "", "busy")


class Thread(ProducerThread):
    """Does nothing by itself."""

    def __init__(self, options: Any, wake: Callable[[], None]) -> None:
        super().__init__(options, wake)
        self.sent: list[tuple[int, Record, int]] = []

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        pass

    def send(self, number: int, record: Record, partition: int) -> None:
        self.sent.append((number, record, partition))

    def answer(self, *numbers: int, refusal: Refusal | None = None) -> None:
        if refusal is None:
            self._accepted.extend(numbers)
        else:
            self._refused.extend(Answer(each, refusal) for each in numbers)


def test_a_topic_that_is_the_source_takes_nothing() -> None:
    """It would be read and written without end, or copied twice."""
    rig = Rig(origin="ewr/t", target="jfk")
    (lost,) = rig.opened("origin-id")
    assert lost.refusal.kind is RefusalKind.FATAL
    assert "jfk leads to the namespace of ewr" in lost.refusal.description
    rig.close()
    for origin, cluster in (("ewr/T", "origin-id"), ("ewr/t", "c1")):
        rig = Rig(origin=origin, target="jfk")
        assert rig.opened(cluster)[:1] == [Opened()]
        rig.close()


class Rig:
    """A target over threads that do nothing."""

    def __init__(self, *, identity: str = "origin-id", **options: str) -> None:
        self.threads: list[Thread] = []
        self.pool = EndPool()

        def make(*arguments: Any) -> Thread:
            self.threads.append(Thread(*arguments))
            return self.threads[-1]

        read = read_target({"bootstrap_servers": "a", "topic": "t", **options})
        self.target = KafkaTarget(self.pool, 1, read, identity, make)
        self.now = time.monotonic()
        self.target.open()

    def opened(self, cluster_id: str = "c1") -> list[Any]:
        self.threads[-1].view = TopicView(cluster_id, 3)
        return list(self.target.poll(self.now))

    def send(self, *records: Record, is_envelope: bool = False) -> None:
        self.target.send(Send([to_message(each, (each.partition or 0) << 48) for each in records], is_envelope))

    def close(self) -> None:
        self.target.close()
        self.pool.close()


@pytest.fixture
def rig() -> Any:
    made = Rig()
    yield made
    made.close()


def record(number: int, key: bytes | None = b"k", partition: int = 0) -> Record:
    return Record(b"%d" % number, key, (), 1, partition)


def test_answers_become_outcomes_by_ordinal(rig: Rig) -> None:
    """I1."""
    assert rig.opened() == [Opened(), Granted(CREDIT)]
    rig.send(*map(record, range(5)))
    rig.threads[0].answer(1, 0, 4)
    rig.threads[0].answer(3, refusal=BUSY)
    reported = rig.target.poll(rig.now)
    assert reported == [Outcome(0, 1), Outcome(4, 4), Outcome(3, 3, BUSY), Granted(CREDIT - 1)]


def test_an_envelope_is_answered_once_when_all_of_it_is(rig: Rig) -> None:
    """I1."""
    rig.opened()
    rig.send(record(1), record(2), is_envelope=True)
    rig.send(record(3))
    rig.threads[0].answer(1, 2)
    assert rig.target.poll(rig.now) == [Outcome(1, 1), Granted(CREDIT - 1)]
    rig.threads[0].answer(0, refusal=BUSY)
    assert rig.target.poll(rig.now) == [Outcome(0, 0, BUSY, (1,)), Granted(CREDIT)]


def test_what_was_stored_of_an_envelope_is_reported_before_the_connection_is_lost(rig: Rig) -> None:
    """Sent again with the others, it would be there twice."""
    rig.opened()
    rig.send(record(1), record(2), record(3), is_envelope=True)
    rig.threads[0].answer(2)
    rig.threads[0].lost = Refusal(RefusalKind.UNKNOWN, "", "the producer has failed")
    outcome, lost = rig.target.poll(rig.now)
    assert isinstance(lost, Lost)
    assert outcome == Outcome(0, 0, lost.refusal, (2,))


def test_a_record_that_cannot_be_made_is_refused_without_the_others_of_its_envelope(rig: Rig) -> None:
    rig.opened()
    rig.target.send(Send([to_message(record(1), 1), b"nonsense"], is_envelope=True))
    rig.threads[0].answer(0)
    outcome = rig.target.poll(rig.now)[0]
    assert isinstance(outcome, Outcome)
    assert (outcome.refusal is not None, outcome.taken) == (True, (0,))


def test_another_cluster_is_refused(rig: Rig) -> None:
    """I2."""
    rig.opened("c1")
    rig.target.open()
    reported = rig.opened("c2")
    assert isinstance(reported[0], Lost)
    assert reported[0].refusal.kind is RefusalKind.FATAL


def test_a_cluster_that_acknowledges_nothing_is_lost(rig: Rig) -> None:
    """I3."""
    rig.opened()
    assert rig.target.deadline(rig.now) > 1e9
    rig.send(record(1))
    due = rig.target.deadline(rig.now)
    assert rig.now < due < rig.now + 30
    assert not rig.target.poll(due - 0.1)
    reported = rig.target.poll(due)
    assert [type(each) for each in reported] == [Lost]
    assert reported[0].refusal.kind is RefusalKind.UNKNOWN  # type: ignore[union-attr]
    rig.send(record(2))  # nothing happens: it is not open
    rig.target.open()
    assert rig.opened() == [Opened(), Granted(CREDIT)]


@pytest.mark.parametrize(("how", "expected"), [("key", [-1, 1, -1]), ("source", [2, 1, -1]), ("single", [0, 0, 0])])
def test_what_decides_the_partition(how: str, expected: list[int]) -> None:
    rig = Rig(partitioning=how)
    rig.opened()
    rig.send(record(1, b"k", 5), record(2, None, 4))
    rig.target.send(Send([b"\0Su\xa0\x01x"]))
    assert [partition for _, _, partition in rig.threads[0].sent] == expected
    rig.close()


def test_what_cannot_be_read_is_refused_for_itself(rig: Rig) -> None:
    rig.opened()
    rig.target.send(Send([b"nonsense"]))
    reported = rig.target.poll(rig.now)
    assert isinstance(reported[0], Outcome)
    assert reported[0].refusal is not None
    assert reported[0].refusal.kind is RefusalKind.MESSAGE


def test_copies_show_where_they_have_been_and_never_return() -> None:
    rig = Rig(origin="here/t", target="there")
    with pytest.raises(InvalidArgumentError):
        rig.target.copies(b"", [0], 0)
    rig.opened("c1")
    message = to_message(record(1), 7)
    copies = rig.target.copies(message, [0, len(message)], 0)
    assert not copies.disposed
    back = Rig(identity="c1", origin="there/t", target="here")
    back.opened("origin-id")
    again = back.target.copies(copies.payloads[0], [0, len(copies.payloads[0])], 0)
    assert not again.payloads
    assert again.disposed[0][1].kind == "complete"
    rig.close()
    back.close()


@pytest.mark.parametrize("origin", ["here/t", ""])
def test_copies_differ_as_the_policy_of_the_route_says(origin: str) -> None:
    policy = CopyPolicy(properties={"spilled": True}, removed=("secret",), session_from="partition-key")
    rig = Rig(policy=policy.to_text(), **({"origin": origin, "target": "there"} if origin else {}))
    rig.opened()
    message = section.encode_message(
        b"body",
        annotations={"x-opt-partition-key": "p", "x-opt-sequence-number": 7},
        properties={"message_id": "m", "group_id": "s"},
        application_properties={"secret": "x", "kept": 1},
    )
    rig.target.send(Send(rig.target.copies(message, [0, len(message)], 0).payloads))
    ((_, sent, _),) = rig.threads[0].sent
    headers = dict(sent.headers)
    assert sent.key == b"p"
    assert (headers["spilled"], headers["kept"]) == (b"true", b"1")
    assert "secret" not in headers
    assert ("repl-origin" in headers) is bool(origin)
    rig.close()


def test_a_message_that_would_return_is_dead_lettered_where_it_is_the_only_one() -> None:
    there = Rig(origin="here/t", target="there")
    there.opened("c1")
    message = to_message(record(1), 7)
    (copy,) = there.target.copies(message, [0, len(message)], 0).payloads
    back = Rig(identity="c1", origin="there/t", target="here", policy=CopyPolicy(dead_letters_returning=True).to_text())
    back.opened("origin-id")
    assert back.target.copies(copy, [0, len(copy)], 0).disposed[0][1].kind == "dead-letter"
    there.close()
    back.close()


def test_refusals_say_whether_the_message_is_at_fault() -> None:
    kinds = {
        KafkaError.MSG_SIZE_TOO_LARGE: RefusalKind.UNCLEAR,
        KafkaError.RECORD_LIST_TOO_LARGE: RefusalKind.UNCLEAR,
        KafkaError.INVALID_TIMESTAMP: RefusalKind.UNCLEAR,
        KafkaError.TOPIC_AUTHORIZATION_FAILED: RefusalKind.FATAL,
        KafkaError._PURGE_INFLIGHT: RefusalKind.UNKNOWN,
        KafkaError.NOT_ENOUGH_REPLICAS: RefusalKind.BLOCKED,
    }
    assert {code: refusal_of(KafkaError(code), "t").kind for code in kinds} == kinds
