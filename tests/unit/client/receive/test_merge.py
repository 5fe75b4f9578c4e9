"""Every decision of a receiver of two namespaces, and a random run of it against two simulated namespaces."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from isthmus.client.receive.merge import Action, Ask, Delivery, Effect, Merge, Release, Renew, Settle
from isthmus.client.seen import Bounds, Verdict
from isthmus.client.seen.window import Window

A, B = "primary", "secondary"
NEW, MINE, OTHERS, HANDLED = Verdict.NEW, Verdict.MINE, Verdict.OTHERS, Verdict.HANDLED


def key(name: str) -> tuple[bytes, ...]:
    return (name.encode(),)


def delivery(number: int, side: str, name: str, renew: float = math.inf) -> Delivery:
    return Delivery(number, side, key(name), renew)


@pytest.fixture
def merge() -> Merge:
    merge = Merge((A, B))
    merge.opened(A)
    merge.opened(B)
    return merge


def test_a_new_message_is_handed_over_once_and_both_deliveries_are_completed_when_it_is_handled(merge: Merge) -> None:
    """M1, M2."""
    assert merge.received(delivery(1, A, "m"), NEW, 0) == []
    assert merge.received(delivery(2, B, "m"), MINE, 0) == []
    assert merge.take(10, 0) == [1]
    assert merge.take(10, 0) == []
    assert merge.handled(1) == [Settle(1, A, Action.COMPLETE), Settle(2, B, Action.COMPLETE)]
    assert (merge.counts.handled, merge.counts.suppressed, len(merge)) == (1, 1, 0)


def test_a_copy_that_comes_after_its_message_was_handled_is_completed(merge: Merge) -> None:
    assert merge.received(delivery(2, B, "m"), HANDLED, 0) == [Settle(2, B, Action.COMPLETE)]
    assert merge.counts.suppressed == 1
    assert merge.take(10, 0) == []


def test_a_copy_is_not_settled_before_its_message_is_handled(merge: Merge) -> None:
    """M2: a handler that fails, and a namespace that dies then, must find the copy."""
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.take(1, 0)
    assert merge.tick(100) == []


def test_after_a_failed_handler_the_copy_is_next_and_keeps_the_claim(merge: Merge) -> None:
    """M3."""
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.received(delivery(3, A, "n"), NEW, 0)
    merge.take(1, 0)
    assert merge.failed(1, 1) == [Settle(1, A, Action.ABANDON)]
    assert merge.take(10, 1) == [2, 3]


def test_after_a_failed_handler_without_a_copy_the_claim_goes_before_the_message(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.take(1, 0)
    assert merge.failed(1, 1) == [Release(key("m")), Settle(1, A, Action.ABANDON)]
    assert len(merge) == 0


def test_what_another_receiver_has_is_asked_for_again_until_it_is_handled(merge: Merge) -> None:
    """M4."""
    assert merge.received(delivery(1, A, "m"), OTHERS, 0) == []
    assert merge.tick(0.1) == []
    assert merge.asking == 1
    [ask] = merge.tick(0.6)
    assert ask == Ask(1, A, key("m"))
    assert merge.answered(ask, OTHERS, 0.6) == []
    [ask] = merge.tick(1.2)
    assert merge.answered(ask, HANDLED, 1.2) == [Settle(1, A, Action.COMPLETE)]
    assert len(merge) == 0


def test_what_another_receiver_gave_up_is_handed_over(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), OTHERS, 0)
    [ask] = merge.tick(1)
    assert merge.answered(ask, NEW, 1) == []
    assert merge.take(1, 1) == [1]


def test_a_list_that_does_not_answer_is_asked_again_and_nothing_is_handed_over(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), None, 0)
    assert merge.take(1, 0) == []
    [ask] = merge.tick(1)
    merge.answered(ask, NEW, 1)
    assert merge.take(1, 1) == [1]


def test_an_answer_for_a_removed_delivery_gives_the_claim_back(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), OTHERS, 0)
    [ask] = merge.tick(1)
    merge.lost(A, 1)
    assert isinstance(ask, Ask)
    assert merge.answered(ask, NEW, 1) == [Release(key("m"))]
    assert merge.answered(ask, HANDLED, 1) == []


def test_a_claim_of_ours_that_nothing_here_has_is_asked_for_again_before_it_is_believed(merge: Merge) -> None:
    """Between the claim and this event the message may have been handled: the list then says so."""
    assert merge.received(delivery(1, B, "m"), MINE, 0) == []
    [ask] = merge.tick(0)
    assert isinstance(ask, Ask)
    assert merge.answered(ask, MINE, 0) == []  # no other receiver has it: its release was lost
    assert merge.take(1, 0) == [1]


def test_a_lost_namespace_takes_its_copies_along_and_leaves_what_may_be_the_last(merge: Merge) -> None:
    """M3, M4."""
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.received(delivery(3, A, "n"), NEW, 0)
    assert merge.lost(A, 0) == []
    assert merge.take(10, 0) == [2, 3]
    assert merge.handled(2) == [Settle(2, B, Action.COMPLETE)]
    assert merge.handled(3) == []  # it comes again, and is known
    assert len(merge) == 0


def test_a_message_that_is_with_the_application_when_its_namespace_is_lost_is_handled_once(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.take(1, 0)
    merge.lost(A, 0)
    merge.opened(A)
    merge.received(delivery(2, A, "m"), MINE, 5)
    assert merge.take(1, 5) == []
    assert merge.handled(1) == [Settle(2, A, Action.COMPLETE)]


def test_a_message_whose_lock_ran_out_before_it_was_taken_is_taken_as_it_came_again(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, A, "m"), MINE, 40)
    assert merge.take(10, 40) == [2]
    assert merge.handled(2) == [Settle(2, A, Action.COMPLETE)]


def test_a_closed_namespace_gets_back_what_is_not_with_the_application(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, A, "n"), NEW, 0)
    merge.received(delivery(3, A, "o"), OTHERS, 0)
    merge.received(delivery(4, B, "p"), NEW, 0)
    merge.received(delivery(5, A, "p"), MINE, 0)
    assert merge.take(1, 0) == [1]
    assert merge.closed(A, 0) == [
        Release(key("n")),
        Settle(2, A, Action.GIVE_BACK),
        Settle(3, A, Action.GIVE_BACK),
        Settle(5, A, Action.GIVE_BACK),
    ]
    assert merge.handled(1) == []
    assert merge.take(10, 0) == [4]


@pytest.mark.parametrize("verdict", [NEW, MINE, OTHERS, HANDLED, None])
def test_what_arrives_from_a_namespace_that_was_closed_meanwhile_is_not_handed_over(
    merge: Merge, verdict: Verdict | None
) -> None:
    """Those before it have gone back: in a session it would overtake them."""
    merge.received(delivery(1, A, "1"), NEW, 0)
    merge.closed(A, 0)
    effects = merge.received(delivery(2, A, "2"), verdict, 0)
    assert effects == ([Release(key("2"))] if verdict in (NEW, MINE) else [])
    assert merge.take(10, 0) == []
    assert len(merge) == 0


def test_what_arrives_from_a_closed_namespace_leaves_the_claim_of_its_copy(merge: Merge) -> None:
    merge.received(delivery(1, B, "1"), NEW, 0)
    merge.closed(A, 0)
    assert merge.received(delivery(2, A, "1"), MINE, 0) == []
    assert merge.take(10, 0) == [1]


def test_locks_are_renewed_while_a_message_waits_or_is_handled(merge: Merge) -> None:
    merge.received(delivery(1, A, "m", 15), NEW, 0)
    assert merge.tick(14) == []
    assert merge.tick(15) == [Renew(1, A)]
    merge.take(1, 16)
    assert merge.tick(31) == [Renew(1, A)]
    merge.handled(1)
    assert merge.tick(100) == []


def test_a_handler_that_takes_too_long_loses_its_claim_and_its_copy_goes_back(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.take(1, 10)
    assert merge.tick(309) == []
    assert merge.tick(310) == [Release(key("m")), Settle(2, B, Action.GIVE_BACK)]
    assert merge.handled(1) == []


def test_a_message_that_is_not_taken_goes_back_in_time(merge: Merge) -> None:
    """M4: an application that hangs keeps nothing from other receivers."""
    merge.received(delivery(1, A, "m"), NEW, 0)
    assert merge.tick(300) == [Release(key("m")), Settle(1, A, Action.GIVE_BACK)]
    assert merge.take(1, 300) == []


def test_after_a_suspension_the_list_is_asked_before_anything_is_handed_over(merge: Merge) -> None:
    """M1: another receiver may have handled it when this one's lease was over."""
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.received(delivery(3, A, "n"), NEW, 0)
    merge.doubted(60)
    assert merge.take(10, 60) == []
    asks = merge.tick(60)
    assert [ask.number for ask in asks if isinstance(ask, Ask)] == [1, 2, 3]
    verdicts = {1: HANDLED, 2: HANDLED, 3: MINE}
    effects = [each for ask in asks if isinstance(ask, Ask) for each in merge.answered(ask, verdicts[ask.number], 60)]
    assert effects == [Settle(1, A, Action.COMPLETE), Settle(2, B, Action.COMPLETE)]
    assert merge.take(10, 60) == [3]


def test_the_keys_of_copies_are_keys_of_the_message(merge: Merge) -> None:
    """A message that was sent to both, and copied by routes as well, comes in four deliveries of two origins."""
    merge.received(Delivery(1, A, (b"origin a", b"id"), sequence=1), NEW, 0)
    merge.received(Delivery(2, B, (b"origin b", b"id"), sequence=1), MINE, 0)
    merge.received(Delivery(3, A, (b"origin b",), sequence=2), MINE, 0)
    merge.received(Delivery(4, B, (b"origin a",), sequence=2), MINE, 0)
    assert merge.keys_of(1) == {b"origin a", b"origin b", b"id"}
    assert merge.take(10, 0) == [1]
    sides = {1: A, 2: B, 3: A, 4: B}
    assert merge.handled(1) == [Settle(number, side, Action.COMPLETE) for number, side in sides.items()]
    assert merge.keys_of(1) == frozenset()


def test_demand_is_what_fits_and_what_the_application_asks_for() -> None:
    merge = Merge((A, B), prefetch=3)
    merge.opened(A)
    assert (merge.demand(A), merge.demand(A, 10)) == (3, 10)
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, A, "n"), OTHERS, 0)
    assert (merge.demand(A), merge.demand(B)) == (1, 3)
    merge.take(1, 0)
    assert merge.demand(A) == 2  # what the application has is not looked at


def test_a_dead_lettered_message_is_not_settled_again_and_its_copy_is_completed(merge: Merge) -> None:
    merge.received(delivery(1, A, "m"), NEW, 0)
    merge.received(delivery(2, B, "m"), MINE, 0)
    merge.take(1, 0)
    assert [each.number for each in merge.deliveries_of(1)] == [1, 2]
    assert merge.handled(1, settled=1) == [Settle(2, B, Action.COMPLETE)]


class TestOrder:
    """M5, M6."""

    @pytest.fixture
    def merge(self) -> Merge:
        merge = Merge((A, B), keeps_order=True)
        merge.opened(A)
        merge.opened(B)
        return merge

    def test_the_leading_namespace_gives_the_order(self, merge: Merge) -> None:
        merge.received(delivery(1, B, "2"), NEW, 0)
        merge.received(delivery(2, A, "1"), NEW, 0)
        merge.received(delivery(3, A, "2"), MINE, 0)
        assert merge.take(10, 0) == [2, 3]
        assert merge.handled(3) == [Settle(3, A, Action.COMPLETE), Settle(1, B, Action.COMPLETE)]

    def test_what_the_leading_one_does_not_deliver_passes_after_a_while_and_is_counted(self, merge: Merge) -> None:
        merge.received(delivery(1, B, "1"), NEW, 0)
        merge.received(delivery(2, B, "2"), NEW, 0.5)
        merge.tick(0.9)
        assert merge.ready == 0
        merge.tick(1.0)
        assert merge.take(10, 1.0) == [1]
        merge.tick(1.5)
        assert merge.take(10, 1.5) == [2]
        assert merge.counts.out_of_order == 2

    def test_nothing_overtakes_a_message_that_a_dead_receiver_has(self, merge: Merge) -> None:
        merge.received(delivery(1, A, "1"), OTHERS, 0)
        merge.received(delivery(2, A, "2"), OTHERS, 0)
        merge.received(delivery(3, A, "3"), NEW, 0)
        merge.received(delivery(4, A, "4"), NEW, 0)
        assert merge.take(10, 0) == []
        one, two = merge.tick(100)
        assert isinstance(one, Ask)
        assert isinstance(two, Ask)
        merge.answered(two, NEW, 100)
        assert merge.take(10, 100) == []
        merge.answered(one, NEW, 100)
        merge.tick(100)
        assert merge.take(10, 100) == [1, 2, 3, 4]

    def test_what_comes_in_the_iteration_that_ends_the_waiting_does_not_overtake_either(self, merge: Merge) -> None:
        merge.received(delivery(1, A, "1"), OTHERS, 0)
        for number in (2, 3):
            merge.received(delivery(number, A, str(number)), NEW, 0)
        [ask] = merge.tick(100)
        assert isinstance(ask, Ask)
        merge.answered(ask, NEW, 100)
        merge.received(delivery(4, A, "4"), NEW, 100)
        merge.tick(100)
        assert merge.take(10, 100) == [1, 2, 3, 4]

    def test_what_came_again_keeps_its_place_when_it_is_doubted(self, merge: Merge) -> None:
        """Its delivery has a later number than that of the message behind it, which is yet to come again."""
        merge.received(Delivery(1, A, key("1"), sequence=1), NEW, 0)
        merge.received(Delivery(2, A, key("2"), sequence=2), NEW, 0)
        merge.lost(A, 1)
        merge.opened(A)
        merge.received(Delivery(3, A, key("1"), sequence=1), MINE, 2)
        merge.doubted(60)
        for ask in merge.tick(60):
            assert isinstance(ask, Ask)
            merge.answered(ask, MINE, 60)
        merge.tick(60)
        assert merge.take(10, 60) == [3, 2]

    def test_what_was_doubted_keeps_its_order_over_both_namespaces(self, merge: Merge) -> None:
        """One message is left of a lost connection to one of them, and the one before it is with the other."""
        merge.received(Delivery(1, A, key("1"), sequence=1), NEW, 0)
        merge.received(Delivery(2, A, key("2"), sequence=2), NEW, 0)
        merge.received(Delivery(3, B, key("1"), sequence=1), MINE, 0)
        merge.lost(A, 1)
        for _ in range(2):
            merge.doubted(60)
            for ask in merge.tick(60):
                assert isinstance(ask, Ask)
                merge.answered(ask, MINE, 60)
            merge.tick(60)
        assert merge.ready == 1
        merge.tick(61)
        assert merge.take(10, 61) == [3, 2]

    def test_what_was_doubted_keeps_its_order(self, merge: Merge) -> None:
        for number in range(1, 5):
            merge.received(delivery(number, A, str(number)), NEW, 0)
        merge.doubted(60)
        merge.received(delivery(5, A, "5"), NEW, 60)
        for ask in merge.tick(60):
            assert isinstance(ask, Ask)
            merge.answered(ask, MINE, 60)
        merge.tick(60)
        assert merge.take(10, 60) == [1, 2, 3, 4, 5]

    def test_without_the_leading_one_the_other_leads_at_once(self, merge: Merge) -> None:
        merge.received(delivery(1, B, "1"), NEW, 0)
        merge.received(delivery(2, B, "2"), NEW, 0)
        merge.lost(A, 0)
        assert merge.take(10, 0) == [1, 2]
        merge.received(delivery(3, B, "3"), NEW, 0)
        assert merge.take(10, 0) == [3]
        assert merge.counts.out_of_order == 0

    def test_what_waits_behind_a_slow_application_is_not_overtaken(self, merge: Merge) -> None:
        """M7: a session's messages come back behind later ones if they are given back one by one."""
        for number in (1, 2, 3):
            merge.received(delivery(number, A, str(number)), NEW, 0)
        merge.received(delivery(4, A, "4"), NEW, 100)
        assert merge.take(1, 0) == [1]
        merge.handled(1)
        assert merge.take(1, 150) == [2]
        merge.handled(2)
        assert merge.tick(310) == []
        assert merge.take(10, 310) == [3, 4]

    def test_an_application_that_hangs_gives_all_back_in_order(self, merge: Merge) -> None:
        """M4, M7."""
        merge.received(delivery(1, A, "1"), NEW, 0)
        merge.received(delivery(2, A, "2"), NEW, 100)
        merge.received(delivery(3, B, "3"), NEW, 299.5)
        lost = [("1", 1, A), ("2", 2, A), ("3", 3, B)]
        assert merge.tick(300) == [
            each for name, number, side in lost for each in (Release(key(name)), Settle(number, side, Action.GIVE_BACK))
        ]
        assert merge.take(10, 300) == []
        assert len(merge) == 0

    @pytest.mark.parametrize("is_handled", [True, False])
    def test_a_message_of_a_session_is_settled_however_long_its_handler_takes(
        self, merge: Merge, is_handled: bool
    ) -> None:
        """M4: its lock is the session's, which is renewed: nothing but a settlement lets it be delivered again."""
        merge.received(delivery(1, A, "1"), NEW, 0)
        merge.take(1, 0)
        assert merge.tick(300) == [Release(key("1"))]
        assert [each.number for each in merge.deliveries_of(1)] == [1]
        merge.received(delivery(2, A, "2"), NEW, 301)
        assert merge.take(1, 301) == [2]
        assert (merge.asking, merge.demand(A)) == (0, 20)
        if is_handled:
            assert merge.handled(1, keys=key("1")) == [Settle(1, A, Action.COMPLETE)]
        else:
            assert merge.failed(1, 302) == [Settle(1, A, Action.ABANDON)]
        assert 1 not in merge


class _Namespace:
    """Messages at one namespace: available from a time on; a delivery locks it."""

    LOCK = 5.0

    def __init__(self, names: Iterable[str]) -> None:
        self.available_at = dict.fromkeys(names, 0.0)
        self.delivered: dict[int, str] = {}

    def deliver(self, number: int, now: float) -> str | None:
        for name, at in self.available_at.items():
            if at <= now:
                self.available_at[name] = now + self.LOCK
                self.delivered = {n: each for n, each in self.delivered.items() if each != name}
                self.delivered[number] = name
                return name
        return None

    def settle(self, number: int, action: Action, now: float) -> None:
        name = self.delivered.pop(number, None)
        if name is None or self.available_at.get(name, 0.0) <= now:
            return  # the lock is lost
        if action is Action.COMPLETE:
            del self.available_at[name]
        else:
            self.available_at[name] = now

    def renew(self, number: int, now: float) -> None:
        name = self.delivered.get(number)
        if name is not None and self.available_at.get(name, 0.0) > now:
            self.available_at[name] = now + self.LOCK


def keys_at(stand: str) -> tuple[bytes, ...]:
    """Of the message m1: sent to A (m1/a), sent to B (m1/b), copied from B to A (m1/A) and from A to B (m1/B)."""
    name, _, how = stand.encode().partition(b"/")
    origin = name + (b" from a" if how in b"aB" else b" from b")
    return (origin, name) if how in b"ab" else (origin,)


class _Run:
    """Receivers that share a list, two namespaces, and an application whose handlers fail at times, by a seed."""

    def __init__(self, seed: int, keeps_order: bool, receivers: int) -> None:
        self.chance = random.Random(seed)
        self.names = [f"m{number}" for number in range(30)]
        by_side: dict[str, list[str]] = {A: [], B: []}
        for name in self.names:
            at = self.chance.choice(["a", "b", "ab", "ab", "aB", "aB"])  # sent to one, to both, or copied by a route
            for stand in at:
                by_side[A if stand in "aA" else B].append(f"{name}/{stand}")
        self.sides = {side: _Namespace(each) for side, each in by_side.items()}
        self.window = Window(Bounds())
        self.keeps_order = keeps_order
        self.now, self.number, self.owners = 0.0, 0, 0
        self.receivers = [self.receiver() for _ in range(receivers)]
        self.handled: dict[str, int] = dict.fromkeys(self.names, 0)
        self.is_calm = False
        self.on_the_way: list[Callable[[], None]] = []  # answers of the list, and releases

    def receiver(self) -> dict[str, object]:
        self.owners += 1
        merge = Merge((A, B), prefetch=5, keeps_order=self.keeps_order, max_renewal_seconds=1000)
        return {"merge": merge, "owner": f"o{self.owners}", "open": set(), "names": {}, "with": {}}

    def ms(self) -> int:
        return round(self.now * 1000)

    def carry_out(self, receiver: dict, effects: list[Effect]) -> None:  # type: ignore[type-arg]
        merge: Merge = receiver["merge"]
        for at, effect in enumerate(effects):
            if isinstance(effect, Release):
                self.soon(partial(self.release, receiver, effect.keys, effects[at + 1 :]))
                return
            if isinstance(effect, Ask):
                self.ask(receiver, effect.keys, partial(merge.answered, effect))
            elif effect.side in receiver["open"] and (self.is_calm or self.chance.random() < 0.9):
                if isinstance(effect, Renew):
                    self.sides[effect.side].renew(effect.number, self.now)
                else:
                    self.sides[effect.side].settle(effect.number, effect.action, self.now)

    def release(self, receiver: dict, keys: tuple[bytes, ...], following: list[Effect]) -> None:  # type: ignore[type-arg]
        self.window.release([keys], receiver["owner"])
        receiver["merge"].released(keys)
        self.carry_out(receiver, following)

    def soon(self, what: Callable[[], None]) -> None:
        """Now, or after something else: threads and networks are slow."""
        if self.chance.random() < 0.7:
            what()
        else:
            self.on_the_way.append(what)

    def ask(self, receiver: dict, keys: tuple[bytes, ...], reported: Callable[..., list[Effect]]) -> None:  # type: ignore[type-arg]
        """The list answers, and the answer comes, both soon."""
        merge: Merge = receiver["merge"]
        question = merge.asks()

        def claim() -> None:
            [verdict] = self.window.claim([keys], receiver["owner"], self.ms())

            def come() -> None:
                effects = reported(verdict, self.now, question)
                merge.asked(question)
                self.carry_out(receiver, effects)

            self.soon(come)

        self.soon(claim)

    def step(self) -> None:
        if self.on_the_way and self.chance.random() < 0.3:
            self.on_the_way.pop(self.chance.randrange(len(self.on_the_way)))()
        index = self.chance.randrange(len(self.receivers))
        receiver = self.receivers[index]
        merge: Merge = receiver["merge"]  # type: ignore[assignment]
        side = self.chance.choice((A, B))
        what = self.chance.random()
        self.now += self.chance.random() * 0.2
        self.window.renew(receiver["owner"], self.ms())  # type: ignore[arg-type]
        if side not in receiver["open"]:  # type: ignore[operator]
            if self.is_calm or what < 0.3:
                receiver["open"].add(side)  # type: ignore[attr-defined]
                merge.opened(side)
        elif not self.is_calm and what < 0.03:
            receiver["open"].discard(side)  # type: ignore[attr-defined]
            self.carry_out(receiver, merge.lost(side, self.now))
        elif not self.is_calm and what < 0.04:
            self.receivers[index] = self.receiver()  # kill -9
        elif not self.is_calm and what < 0.06:
            receiver["open"].discard(side)  # type: ignore[attr-defined]
            effects = merge.closed(side, self.now)
            self.carry_out(receiver, effects)
        elif what < 0.4 and merge.demand(side) > 0:
            self.number += 1
            name = self.sides[side].deliver(self.number, self.now)
            if name is not None:
                receiver["names"][self.number] = name  # type: ignore[index]
                came = Delivery(self.number, side, keys_at(name), 2.0, hash(name))
                self.ask(receiver, came.keys, partial(merge.received, came))
        elif not self.is_calm and what < 0.42:
            merge.doubted(self.now)
        elif what < 0.7:
            for number in merge.take(2, self.now):
                name = receiver["names"][number].partition("/")[0]  # type: ignore[index]
                holders = [
                    each
                    for other in self.receivers
                    for each in other["with"].values()
                    if each == name  # type: ignore[attr-defined]
                ]
                assert not holders, f"M1: {name} is with two handlers"
                receiver["with"][number] = name  # type: ignore[index]
        elif receiver["with"]:
            number = self.chance.choice(list(receiver["with"]))  # type: ignore[call-overload]
            name = receiver["with"].pop(number)  # type: ignore[attr-defined]
            if self.is_calm or self.chance.random() < 0.8:
                [is_first] = self.window.handle([tuple(merge.keys_of(number))], self.ms())
                assert is_first, f"{name} was handled twice"
                self.handled[name] += 1
                self.carry_out(receiver, merge.handled(number))
            else:
                self.carry_out(receiver, merge.failed(number, self.now))
        self.carry_out(receiver, merge.tick(self.now))


@pytest.mark.parametrize("keeps_order", [False, True])
@pytest.mark.parametrize("receivers", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_message_is_handled_once_and_nothing_is_left(
    seed: int, receivers: int, keeps_order: bool
) -> None:
    """M1 to M4, with one or two receivers, lost connections, kills, failing handlers and settlements that do not arrive."""
    run = _Run(seed, keeps_order, receivers)
    for _ in range(1500):
        run.step()
    run.is_calm = True
    for _ in range(20_000):
        run.step()
        if not any(each.available_at for each in run.sides.values()):
            break
    assert set(run.handled.values()) == {1}, {name: count for name, count in run.handled.items() if count != 1}
    assert [list(each.available_at) for each in run.sides.values()] == [[], []]


class _Session:
    """One receiver of one session, whose lock is the link's, and an application that handles one message after another, at times slowly."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.merge = Merge((A, B), prefetch=self.chance.choice([1, 3, 8]), keeps_order=True, max_renewal_seconds=3.0)
        self.window = Window(Bounds())
        self.available = set(range(60))
        self.delivered: dict[int, int] = {}
        self.names: dict[int, int] = {}
        self.handled: list[int] = []
        self.in_hand: int | None = None
        self.is_open = False
        self.now = 0.0

    def claim(self, keys: tuple[bytes, ...], reported: Callable[..., list[Effect]]) -> None:
        question = self.merge.asks()
        [verdict] = self.window.claim([keys], "me", round(self.now * 1000))
        effects = reported(verdict, self.now, question)
        self.merge.asked(question)
        self.carry_out(effects)

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                self.window.release([effect.keys], "me")
                self.merge.released(effect.keys)
            elif isinstance(effect, Ask):
                self.claim(effect.keys, partial(self.merge.answered, effect))
            elif isinstance(effect, Settle):
                sequence = self.delivered.pop(effect.number, None)
                if sequence is not None and effect.action is not Action.COMPLETE:
                    self.available.add(sequence)

    def step(self) -> None:
        what = self.chance.random()
        self.now += self.chance.random() * (6.0 if what > 0.99 else 0.1)
        self.window.renew("me", round(self.now * 1000))
        if not self.is_open:
            self.is_open = True
            self.merge.opened(A)
        elif what < 0.01:
            self.is_open = False
            self.available.update(self.delivered.values())
            self.delivered.clear()
            self.carry_out(self.merge.lost(A, self.now))
        elif what < 0.02:
            self.merge.doubted(self.now)
        elif what < 0.4 and self.merge.demand(A) > 0 and self.available:
            number, sequence = len(self.names) + 1, min(self.available)
            self.available.discard(sequence)
            self.delivered[number] = self.names[number] = sequence
            came = Delivery(number, A, key(str(sequence)), sequence=sequence)
            self.claim(came.keys, partial(self.merge.received, came))
        elif what < 0.6 and self.in_hand is None:
            self.in_hand = next(iter(self.merge.take(1, self.now)), None)
        elif self.in_hand is not None and what < 0.8:
            number, self.in_hand = self.in_hand, None
            keys = key(str(self.names[number]))
            self.window.handle([keys], round(self.now * 1000))
            self.handled.append(self.names[number])
            self.carry_out(self.merge.handled(number, keys=keys))
        self.carry_out(self.merge.tick(self.now))


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_session_keeps_its_order(seed: int) -> None:
    """M7, with lost connections, doubted claims, and an application that hangs for longer than locks are renewed."""
    run = _Session(seed)
    for _ in range(10_000):
        run.step()
        if not run.available and not run.delivered:
            break
    assert run.handled == list(range(60))
