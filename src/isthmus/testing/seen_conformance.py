"""The conformance suite of lists of seen messages, for the stores of isthmus and an application's own.

    class TestMine(SeenConformance):
        @pytest.fixture
        def make(self): ...  # returns a callable (bounds) -> SeenStore; several calls open the same list

Stores without a manual clock leave `advance` out; the scenarios that need it then wait in real time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from isthmus.client.seen.store import Bounds, SeenStore, Swept, Verdict

__all__ = ["MakeSeen", "SeenConformance"]

MakeSeen = Callable[[Bounds], SeenStore]
A, B, C, D = (bytes([each]) * 16 for each in b"abcd")
SHORT = Bounds(window=timedelta(seconds=1), lease=timedelta(seconds=1))


class SeenConformance:
    """The scenarios; a subclass gives the fixture `make`, and `advance` with a manual clock."""

    def advance(self, seconds: float) -> None:
        """Moves the clock forward."""
        time.sleep(seconds)

    def test_a_message_is_new_once_and_handled_for_good(self, make: MakeSeen) -> None:
        seen = make(Bounds())
        assert seen.claim([(A,), (B,), (A,)], "one") == [Verdict.NEW, Verdict.NEW, Verdict.MINE]
        assert seen.handle([(A,)], "one") == [True]
        assert seen.claim([(A,), (B,)], "one") == [Verdict.HANDLED, Verdict.MINE]
        assert seen.handle([(A,)], "one") == [False]
        assert seen.count() == 1

    def test_a_message_that_was_handed_over_and_not_handled_is_not_seen(self, make: MakeSeen) -> None:
        seen = make(Bounds())
        seen.claim([(A,)], "one")
        seen.release([(A,)], "one")
        assert seen.count() == 0
        assert seen.claim([(A,)], "two") == [Verdict.NEW]

    def test_another_owner_waits_for_release_and_learns_of_handling(self, make: MakeSeen) -> None:
        one, two = make(Bounds()), make(Bounds())
        one.claim([(A,), (B,)], "one")
        assert two.claim([(A,), (B,)], "two") == [Verdict.OTHERS, Verdict.OTHERS]
        two.release([(A,)], "two")  # not its own: nothing happens
        assert two.claim([(A,)], "two") == [Verdict.OTHERS]
        one.release([(A,)], "one")
        one.handle([(B,)], "one")
        assert two.claim([(A,), (B,)], "two") == [Verdict.NEW, Verdict.HANDLED]

    def test_claims_of_an_owner_that_is_gone_count_no_more(self, make: MakeSeen) -> None:
        one, two = make(SHORT), make(SHORT)
        one.claim([(A,), (B,)], "one")
        self.advance(0.7)
        one.renew("one")
        self.advance(0.7)
        assert two.claim([(A,)], "two") == [Verdict.OTHERS]
        self.advance(1.1)
        assert two.claim([(A,)], "two") == [Verdict.NEW]
        assert one.claim([(A,)], "one") == [Verdict.OTHERS]

    def test_an_owner_that_retires_leaves_no_claim(self, make: MakeSeen) -> None:
        seen = make(Bounds())
        seen.claim([(A,)], "one")
        seen.retire("one")
        assert seen.claim([(A,)], "two") == [Verdict.NEW]

    def test_one_shared_key_makes_one_message(self, make: MakeSeen) -> None:
        seen = make(Bounds())
        assert seen.claim([(A, B)], "one") == [Verdict.NEW]
        assert seen.claim([(B, C)], "one") == [Verdict.MINE]
        assert seen.claim([(C,)], "two") == [Verdict.OTHERS]
        seen.handle([(A, B)], "one")
        assert seen.claim([(B, D)], "two") == [Verdict.HANDLED]
        assert seen.claim([(D,)], "two") == [Verdict.HANDLED]  # by what it shared with (B, D)

    def test_what_is_older_than_the_window_is_forgotten_and_may_be_handled_again(self, make: MakeSeen) -> None:
        seen = make(SHORT)
        seen.handle([(A,)], "one")
        self.advance(1.2)
        assert seen.claim([(A,)], "one") == [Verdict.NEW]
        assert seen.handle([(A,)], "one") == [True]
        assert seen.claim([(A,)], "two") == [Verdict.HANDLED]  # remembered again, though no sweep was made
        self.advance(1.2)
        assert seen.sweep() == Swept(by_age=1)
        assert seen.count() == 0

    def test_the_oldest_beyond_the_count_are_forgotten_and_told(self, make: MakeSeen) -> None:
        seen = make(Bounds(max_count=10))
        for number in range(25):
            seen.handle([(b"%016d" % number,)], "one")
            self.advance(0.002)
        assert seen.sweep() == Swept(by_count=15)
        assert seen.count() == 10
        verdicts = seen.claim([(b"%016d" % number,) for number in range(25)], "one")
        assert verdicts == [Verdict.NEW] * 15 + [Verdict.HANDLED] * 10
        assert seen.sweep() == Swept()

    def test_of_many_that_claim_at_once_one_is_told_new(self, make: MakeSeen) -> None:
        stores = [make(Bounds()) for _ in range(4)]
        keys = [(b"%016d" % number,) for number in range(50)]
        start = threading.Barrier(len(stores))

        def claim(number: int) -> list[Verdict]:
            start.wait(10)
            return [stores[number].claim([each], f"owner {number}")[0] for each in keys]

        with ThreadPoolExecutor(len(stores)) as pool:
            found = list(pool.map(claim, range(len(stores))))
        for verdicts in zip(*found, strict=True):
            assert sorted(each.value for each in verdicts) == ["new", "others", "others", "others"]

    def test_many_handle_at_once(self, make: MakeSeen) -> None:
        seen = make(Bounds())
        with ThreadPoolExecutor(8) as pool:
            fresh = list(pool.map(lambda number: seen.handle([(b"%016d" % (number // 2),)], "one"), range(200)))
        assert sum(each == [True] for each in fresh) == 100
        assert seen.count() == 100
