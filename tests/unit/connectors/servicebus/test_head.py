from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Int, Long, Timestamp
from isthmus.connectors.servicebus.head import (
    FRAGMENT_BITS,
    Peek,
    first_hole,
    first_waiting,
    last_sequence,
    pages,
    peeked_message,
)
from isthmus.connectors.servicebus.message.sequence import annotations_of, enqueued_ms_of, sequences_of
from isthmus.entities.fragment import message_key


def message(sequence: int, state: int = 0, ttl_ms: int | None = None) -> bytes:
    return section.encode_message(
        b"",
        header=Header(ttl_ms=ttl_ms),
        annotations={
            "x-opt-sequence-number": Long(sequence),
            "x-opt-enqueued-time": Timestamp(1000),
            "x-opt-message-state": Int(state),
        },
    )


def entity(messages: dict[int, bytes]) -> Peek:
    def peek(start: int, count: int) -> list[bytes]:
        return [messages[s] for s in sorted(messages) if s >= start][:count]

    return peek


def test_deferred_scheduled_and_expired_messages_do_not_wait_i1() -> None:
    messages = {n: message(n, state=1 + n % 2) for n in range(1, 100)}
    messages[100] = message(100, ttl_ms=500)
    peek = entity(messages)
    assert first_waiting(peek, 2000) is None
    messages[200] = message(200, ttl_ms=5000)
    found = first_waiting(peek, 2000)
    assert found is not None
    assert (found.sequence, found.expires_at_ms) == (200, 6000)
    assert first_waiting(peek, 2000, through=150) is None


def test_an_annotation_of_the_sender_that_cannot_be_read_hides_no_message() -> None:
    """A namespace takes it, and one such message must not stop a client that peeks."""
    broken = section.encode_message(
        b"",
        header=Header(ttl_ms=500),
        annotations={
            "x-opt-mine": "text",
            "x-opt-sequence-number": Long(7),
            "x-opt-enqueued-time": Timestamp(1000),
            "x-opt-locked-until": Timestamp(9000),
        },
    ).replace(b"text", b"\xff\xff\xff\xff")
    assert peeked_message(broken) == (7, 0, 1000, 1500)
    assert list(sequences_of([broken, message(8)])) == [7, 8]
    assert enqueued_ms_of(broken) == 1000
    assert annotations_of(broken, "x-opt-locked-until", "x-opt-none") == {"x-opt-locked-until": 9000}


def test_a_look_begins_and_ends_at_its_arguments() -> None:
    peek = entity({n: message(n) for n in (3, 4, 9)})
    assert first_waiting(peek, 0, 2) is None
    assert first_waiting(peek, 0, 8, start=5) is None
    found = first_waiting(peek, 0, start=5)
    assert found is not None
    assert found.sequence == 9


@given(st.sets(st.integers(1, 5000), max_size=30), st.integers(0, 6000))
def test_the_last_sequence_number_is_found_wherever_one_starts(sequences: set[int], start: int) -> None:
    peek = entity({n: message(n) for n in sequences})
    assert last_sequence(peek, start) == max(sequences, default=0)


@given(
    st.sets(st.integers(1, 300) | st.integers(1 << 48, (1 << 48) + 300), max_size=60),
    st.integers(0, 400),
    st.integers(1, 9),
)
def test_pages_contain_everything_that_is_there(sequences: set[int], start: int, count: int) -> None:
    found = list(pages(entity({n: message(n) for n in sequences}), count, start))
    assert [peeked_message(each).sequence for page in found for each in page] == sorted(
        n for n in sequences if n >= start
    )
    assert all(0 < len(page) <= count for page in found)


class Log:
    """Records of three partitions, some of which compaction removed; it knows its ends, and counts what it is asked."""

    def __init__(self, kept: list[list[bool]]) -> None:
        self.asked = 0
        self._ends = [len(each) for each in kept]
        numbers = [
            (at << FRAGMENT_BITS) + n for at, each in enumerate(kept) for n, is_kept in enumerate(each) if is_kept
        ]
        self.numbers = numbers
        self._peek = entity({n: message(n) for n in numbers})

    def __call__(self, start: int, count: int) -> Sequence[bytes]:
        self.asked += 1
        return self._peek(start, count)

    def last_sequence(self, below: int) -> int:
        ends = [(at << FRAGMENT_BITS) + end for at, end in enumerate(self._ends) if end and at << FRAGMENT_BITS < below]
        return max((min(each, below) - 1 for each in ends), default=0)


@given(st.lists(st.lists(st.booleans(), max_size=40), min_size=3, max_size=3), st.integers(0, 50), st.integers(1, 9))
def test_pages_of_a_log_are_found_without_a_search_for_its_ends(kept: list[list[bool]], start: int, count: int) -> None:
    log = Log(kept)
    found = list(pages(log, count, start))
    assert [peeked_message(each).sequence for page in found for each in page] == [n for n in log.numbers if n >= start]
    assert log.asked <= len(found) + 2 * len(kept) + 2


@pytest.mark.parametrize("fragments", [[0], [1, 2, 5]])
def test_i3_a_look_ends_though_messages_come_faster_than_it_goes(fragments: list[int]) -> None:
    remaining = {
        (each << FRAGMENT_BITS) + n: message((each << FRAGMENT_BITS) + n) for each in fragments for n in range(1, 40)
    }
    before = sorted(remaining)

    def busy(start: int, count: int) -> Sequence[bytes]:
        page = entity(dict(sorted(remaining.items())))(start, count)
        for each in fragments:
            top = max(n for n in remaining if n >> FRAGMENT_BITS == each)
            remaining.update({n: message(n) for n in range(top + 1, top + 1 + 2 * count)})
        return page

    found = [peeked_message(each).sequence for page in islice(pages(busy, 10), 1000) for each in page]
    assert set(before) <= set(found)
    assert len(found) == len(set(found))
    assert len(found) < 4000


def test_between_fragments_of_a_partitioned_entity_there_is_no_hole() -> None:
    """They keep no order: what waits in another one may come later."""
    one, two = 1 << 48, 2 << 48
    peek = entity({number: message(number) for number in (one + 5, one + 6, two + 1, two + 3)})
    assert first_hole(peek, 0, one + 5, [two + 1]) is None
    assert first_hole(peek, 0, 0, [two + 1]) is None
    assert first_hole(peek, 0, 0, [one + 5, one + 7]) == peeked_message(message(one + 6))


def test_a_number_names_its_fragment_as_the_namespace_writes_it() -> None:
    assert FRAGMENT_BITS == message_key.FRAGMENT_BITS


def test_a_page_that_is_cut_by_its_size_is_not_taken_for_the_last() -> None:
    """A namespace limits a reply to a peek in bytes, too: behind large deferred messages no waiting one was found, and no batch began."""
    peek = entity({n: message(n, state=1) for n in range(1, 60)} | {60: message(60)})

    def cut(start: int, count: int) -> Sequence[bytes]:
        return peek(start, min(count, 5))

    found = first_waiting(cut, 2000)
    assert found is not None
    assert found.sequence == 60
    assert first_waiting(cut, 2000, through=59) is None
