from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.servicebus.spark.ledger import Ledger, runs_of


def token(sequence: int) -> bytes:
    return b"t%d" % sequence


def test_runs_are_consecutive() -> None:
    assert runs_of(range(5, 9)) == [(0, 4)]
    assert runs_of([1, 2, 4, 5, 3]) == [(0, 2), (2, 4), (4, 5)]
    assert runs_of([]) == []


@given(
    st.lists(st.integers(1, 60), unique=True, min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), max_size=20),
)
def test_settling_finds_each_delivery_once_with_its_id_and_token_i1(
    sequences: list[int], ranges: list[tuple[int, int]]
) -> None:
    ledger = Ledger()
    ledger.add(sequences, 1000, [token(s) for s in sequences])
    expected = {sequence: 1000 + i for i, sequence in enumerate(sequences)}
    for first, count in ranges:
        found = {}
        for span in ledger.settle(first, first + count):
            for i, lock in enumerate(span.tokens):
                found[span.sequence + i] = span.delivery_id + i
                assert lock == token(span.sequence + i)
        wanted = {s: d for s, d in expected.items() if first <= s <= first + count}
        assert found == wanted
        expected = {s: d for s, d in expected.items() if s not in wanted}
        assert ledger.outstanding == len(expected)
        assert ledger.first_sequence == min(expected, default=None)
    left = {span.sequence + i: span.delivery_id + i for span in ledger.clear() for i in range(len(span.tokens))}
    assert left == expected
    assert (ledger.outstanding, ledger.added) == (0, len(sequences))


def test_a_second_delivery_replaces_the_first_i2() -> None:
    ledger = Ledger()
    ledger.add(range(1, 6), 10, [b"old"] * 5)
    ledger.add([3], 20, [b"new"])
    assert ledger.outstanding == 5
    spans = ledger.settle(1, 5)
    assert [(s.sequence, s.delivery_id, list(s.tokens)) for s in spans] == [
        (1, 10, [b"old"] * 2),
        (3, 20, [b"new"]),
        (4, 13, [b"old"] * 2),
    ]


def test_what_is_not_outstanding_is_counted() -> None:
    ledger = Ledger()
    ledger.add([5], 1, [b"t"])
    ledger.settle(4, 6)
    assert (ledger.settled, ledger.unknown) == (1, 2)


def test_consecutive_deliveries_make_one_run_i3() -> None:
    ledger = Ledger()
    ledger.add(range(1, 1001), 1, [b"t"] * 1000)
    for sequence in range(1, 500):
        ledger.settle(sequence, sequence)
    assert len(list(ledger.spans())) == 1


def test_bytes_count_until_their_deliveries_are_settled_i4() -> None:
    ledger = Ledger()
    ledger.add(range(1, 5), 10, [b"t"] * 4, 400)
    ledger.add([5], 14, [b"t"], 1_000_000)
    ledger.add(range(6, 8), 15, [b"t"] * 2, 30)
    assert ledger.outstanding_bytes == 1_000_430
    ledger.settle(2, 3)
    assert ledger.outstanding_bytes == 1_000_230
    ledger.settle(1, 5)
    assert ledger.outstanding_bytes == 30
    ledger.add([6], 17, [b"t"], 15)  # delivered again: the older delivery counts no more
    assert ledger.outstanding_bytes == 30
    ledger.settle(6, 7)
    assert ledger.outstanding_bytes == 0
    ledger.add([9], 18, [b"t"], 5)
    ledger.clear()
    assert (ledger.outstanding, ledger.outstanding_bytes) == (0, 0)
