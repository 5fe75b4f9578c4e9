"""The unsettled deliveries, across links."""

from isthmus.connectors.servicebus.port.token_map import TokenMap


def tokens(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def flat(spans: list) -> list[bytes]:
    return [token for span in spans for token in span.tokens]


def test_a_position_is_taken_once_i1() -> None:
    known = TokenMap()
    known.add(range(10, 14), 0, tokens(0, 1, 2, 3), 0.0)
    taken = known.take(11, 12)
    assert [(span.delivery_id, span.last_id) for span in taken.on_link] == [(1, 2)]
    assert taken.by_token == []
    assert flat(known.take(0, 99).on_link) == tokens(0, 3)
    assert known.take(0, 99) == ([], [])
    assert known.unsettled == 0


def test_a_position_that_comes_again_replaces_the_older_i2() -> None:
    known = TokenMap()
    known.add(range(1, 4), 0, tokens(1, 2, 3), 0.0)
    known.add([2], 3, tokens(22), 0.0)
    assert flat(known.take(2, 2).on_link) == tokens(22)
    known.link_lost()
    known.add([3, 1], 0, tokens(33, 11), 0.0)
    taken = known.take(1, 3)
    assert sorted(flat(taken.on_link)) == tokens(11, 33)
    assert taken.by_token == []
    assert known.unsettled == 0


def test_an_older_link_settles_by_token_i3() -> None:
    known = TokenMap()
    known.add(range(1, 5), 7, tokens(1, 2, 3, 4), 0.0)
    known.link_lost()
    known.add(range(5, 7), 0, tokens(5, 6), 0.0)
    known.link_lost()
    known.add([7], 0, tokens(7), 0.0)
    taken = known.take(3, 7)
    assert flat(taken.by_token) == tokens(3, 4, 5, 6)
    assert [span.delivery_id for span in taken.on_link] == [0]
    assert known.unsettled == 2


def test_locks_are_renewed_when_a_third_of_their_time_is_over_and_old_ones_at_once() -> None:
    known = TokenMap()
    assert known.renewal_due(30) == float("inf")
    known.add([1], 0, tokens(1), 100.0)
    known.add([2], 1, tokens(2), 105.0)
    assert known.renewal_due(30) == 110.0
    assert known.renew(110.0, 30) == tokens(1)
    assert known.renewal_due(30) == 120.0
    known.take(2, 2)
    assert known.renew(120.0, 30) == tokens(1)
    known.link_lost()
    known.add([3], 0, tokens(3), 121.0)
    assert known.renewal_due(30) == 0.0
    assert known.renew(122.0, 30) == tokens(1)
    assert known.renewal_due(30) == 131.0
    known.take(1, 3)
    assert known.renewal_due(30) == float("inf")
    known.add([4], 1, tokens(4), 500.0)
    assert known.renewal_due(30) == 510.0  # what was settled long ago makes nothing due
