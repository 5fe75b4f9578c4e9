"""isthmus.connectors.envelope"""

from __future__ import annotations

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.envelope import EnvelopeAccount

NO = Refusal(RefusalKind.MESSAGE, "", "no")
BUSY = Refusal(RefusalKind.BLOCKED, "", "busy")


def test_without_envelopes_ordinals_are_those_of_the_link() -> None:
    """I2"""
    account = EnvelopeAccount()
    assert account.sent(5) == 0
    assert account.answered(0, 4, None) == [Outcome(0, 4)]
    assert account.sent(2) == 5
    assert not account.has_envelopes
    assert account.answered(5, 6, NO) == [Outcome(5, 6, NO)]


def test_an_envelope_has_one_outcome() -> None:
    """I1"""
    account = EnvelopeAccount()
    assert (account.sent(2), account.sent_envelope(3), account.sent(1)) == (0, 2, 5)
    assert account.answered(0, 3, None) == [Outcome(0, 0), Outcome(1, 1)]
    assert account.answered(4, 5, None) == [Outcome(2, 2), Outcome(3, 3)]


def test_an_envelope_is_refused_with_any_of_its_messages() -> None:
    """I1"""
    account = EnvelopeAccount()
    account.sent_envelope(3)
    account.sent_envelope(1)
    assert account.answered(1, 1, NO) == []
    assert account.answered(0, 0, None) == []
    assert account.answered(2, 3, None) == [Outcome(0, 0, NO, (0, 2)), Outcome(1, 1)]


def test_of_an_envelope_the_first_refusal_is_reported_and_what_was_taken() -> None:
    """I1, I3: sent again with the others, what was taken would be there twice."""
    account = EnvelopeAccount()
    account.sent(1)
    account.sent_envelope(4)
    assert account.answered(4, 4, None) == []
    assert account.answered(2, 2, NO) == []
    assert account.answered(3, 3, BUSY) == []
    assert account.answered(1, 1, None) == [Outcome(1, 1, NO, (0, 3))]
    assert account.lost(BUSY) == []


def test_what_was_taken_of_an_envelope_is_reported_where_its_connection_is_lost() -> None:
    """I3"""
    account = EnvelopeAccount()
    for _ in range(4):
        account.sent_envelope(2)
    account.answered(1, 1, None)
    account.answered(2, 2, NO)
    account.answered(4, 4, NO)
    account.answered(5, 5, None)
    account.answered(6, 6, None)
    account.answered(7, 7, None)
    assert account.lost(BUSY) == [Outcome(0, 0, BUSY, (1,))]
    assert account.lost(BUSY) == []
