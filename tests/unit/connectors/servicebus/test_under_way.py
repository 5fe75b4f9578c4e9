"""The account between row and settlement, without sockets."""

from collections.abc import Sequence

import pytest

from isthmus.connectors.servicebus.splice import Refused
from isthmus.connectors.servicebus.under_way import UnderWay
from isthmus.errors import InvalidArgumentError
from isthmus.transport.sender import envelope, messages_of


class Told:
    """What the account asked for, in order."""

    def __init__(self, *, batched: bool = False) -> None:
        self.events: list[object] = []
        self.account = UnderWay(batched=batched, settle=self.settle, refuse=self.refuse, flushed=self.events.append)

    def settle(self, numbers: Sequence[int]) -> None:
        self.events.append(list(numbers))

    def refuse(self, sequence: int | None, refused: Refused) -> None:
        self.events.append((sequence, refused.disposition, refused.reason))


def payloads(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_rows_settle_in_order_though_outcomes_come_out_of_order_i1() -> None:
    told = Told()
    account = told.account
    account.add(payloads(3), range(11, 14), [])
    account.add_flush(7)
    account.sent(0, 0, 3)
    account.acknowledge(1, 2)
    account.advance()
    assert (told.events, len(account), account.is_empty) == ([], 3, False)
    account.acknowledge(0, 1)
    account.advance()
    assert [n for event in told.events[:-1] for n in event] == [11, 12, 13]  # type: ignore[attr-defined]
    assert told.events[-1] == 7
    assert (len(account), account.is_empty, account.acknowledged) == (0, True, 3)


def test_what_is_sent_again_is_what_has_no_outcome_i2() -> None:
    account = Told().account
    account.add(payloads(5), range(5), [])
    account.sent(0, 0, 4)
    account.acknowledge(0, 1)
    account.acknowledge(2, 1)
    account.forget_order()
    assert account.pending() == [(1, b"1"), (3, b"3")]
    account.sent(0, 1, 1)
    account.sent(1, 3, 1)
    assert list(account.deliveries(0, 1)) == [(1, 1), (3, 1)]
    assert account.unsent == 1


def test_a_refused_envelope_is_taken_apart_and_costs_only_the_bad_message_i3() -> None:
    told = Told(batched=True)
    account = told.account
    envelopes = [envelope([b"a", b"b"]), envelope([b"c", b"bad", b"e"]), envelope([b"f"])]
    account.add(envelopes, [[1, 2], [3, 4, 5], [6]], [])
    account.sent(0, 0, 3)
    error = InvalidArgumentError("bad")
    assert account.split_later(1, 1)
    account.acknowledge(2, 1)
    account.acknowledge(0, 1)
    account.split_envelopes()
    again = account.pending()
    assert [(number, messages_of(payload)) for number, payload in again] == [(1, [b"c"]), (2, [b"bad"]), (3, [b"e"])]
    account.sent(3, 1, 3)
    assert not account.split_later(2, 1)
    account.refuse(2, 1, error)
    account.acknowledge(1, 1)
    account.acknowledge(3, 1)
    account.advance()
    refusal = (4, "dead-letter", "RefusedByTarget:invalid-argument")
    assert told.events == [[1, 2], [3], refusal, [5], [6]]
    assert account.is_empty


@pytest.mark.parametrize("count", [0, 3])
def test_rows_with_another_disposition_wait_for_those_before_them(count: int) -> None:
    told = Told()
    account = told.account
    account.add(payloads(count), range(1, count + 1), [(9, Refused(0, "defer", "why", ""))])
    account.sent(0, 0, count)
    if count:
        account.advance()
        assert told.events == []
        account.acknowledge(0, count)
    account.advance()
    assert told.events == [*([[1, 2, 3]] if count else []), (9, "defer", "why")]
