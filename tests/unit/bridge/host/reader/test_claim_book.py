"""The fences of a reader's routes are asked for together."""

from __future__ import annotations

import math

from isthmus.bridge.host.reader.claim_book import ClaimBook


def test_without_claims_nothing_is_asked() -> None:
    book = ClaimBook()
    assert book.fence("", 0.0).is_open(1e9)
    assert book.ask_at == math.inf
    assert book.ask(1e9) == 0


def test_routes_of_a_claim_share_its_fence() -> None:
    book = ClaimBook()
    assert book.fence("a", 0.0) is book.fence("a", 5.0)


def test_one_question_asks_for_all_claims() -> None:
    book = ClaimBook()
    first, second = book.fence("a", 0.0), book.fence("b", 0.0)
    number = book.ask(0.0)
    assert book.ask(0.5) == 0
    assert book.answer(number, {"a": 15.0}, 0.1) == {"a": True}
    assert first.is_open(1.0)
    assert not second.is_open(1.0)
    number = book.ask(1.0)
    assert book.answer(number, {"a": 15.0, "b": 15.0}, 1.1) == {"a": False, "b": True}
    assert book.until_ns() == {"a": 13 * 10**9, "b": 13 * 10**9}


def test_i1_an_answer_to_no_question_moves_nothing() -> None:
    book = ClaimBook()
    fence = book.fence("a", 0.0)
    number = book.ask(0.0)
    assert book.answer(number + 1, {"a": 15.0}, 0.0) == {}
    assert book.answer(number, {"a": 15.0}, 0.0) == {"a": True}
    assert book.answer(number, {"a": 99.0}, 0.0) == {}
    assert fence.until == 12.0


def test_a_claim_that_comes_later_is_asked_for_at_once() -> None:
    book = ClaimBook()
    book.fence("a", 0.0)
    book.ask(0.0)
    later = book.fence("b", 0.3)
    number = book.ask(0.3)
    assert book.answer(number, {"a": 15.0, "b": 15.0}, 0.3) == {"b": True}
    assert later.is_open(1.0)
