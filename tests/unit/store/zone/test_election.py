"""The choice of the newest copy."""

from __future__ import annotations

import random

from isthmus.store.zone.change import Position
from isthmus.store.zone.election import Candidate, elect, next_epoch


def whole(copy: int, epoch: int, sequence: int, promise: int = 0) -> Candidate:
    position = Position(epoch, sequence)
    return Candidate(copy, position, position, promise)


def test_the_newest_of_two_is_elected() -> None:
    assert elect([whole(0, 3, 10), whole(1, 3, 11), Candidate(2, None, None)]) == 1


def test_a_later_epoch_wins_over_a_higher_number() -> None:
    """What one copy alone wrote before the others continued without it was not acknowledged."""
    assert elect([whole(0, 3, 99), whole(1, 4, 11), whole(2, 4, 11)]) == 1


def test_i1_one_copy_alone_is_not_served() -> None:
    assert elect([whole(0, 3, 10), Candidate(1, None, None), Candidate(2, None, None)]) is None


def test_i2_a_copy_behind_what_another_knows_of_is_not_served() -> None:
    under_repair = Candidate(1, Position(3, 12), None)
    assert elect([whole(0, 3, 11), under_repair, Candidate(2, None, None)]) is None
    assert elect([whole(0, 3, 12), under_repair, Candidate(2, None, None)]) == 0


def test_two_copies_under_repair_serve_nothing() -> None:
    marked = [Candidate(copy, Position(1, 1), None) for copy in range(2)]
    assert elect([*marked, Candidate(2, None, None)]) is None


def test_an_epoch_is_above_every_one_known() -> None:
    assert next_epoch([whole(0, 3, 1, promise=7), whole(1, 5, 1, promise=5), Candidate(2, None, None, 9)]) == 10
    assert next_epoch([]) == 1


class Model:
    """Three copies as plain values; a writer that is killed at any instant, and disks that fail and return between two starts."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.logs: list[list[tuple[Position, int]]] = [[], [], []]
        self.promises = [0, 0, 0]
        self.repairs: list[Position | None] = [None, None, None]
        self.acknowledged: list[int] = []
        self.next = 0

    def position(self, copy: int) -> Position:
        return self.logs[copy][-1][0] if self.logs[copy] else Position(0, 0)

    def candidate(self, copy: int) -> Candidate:
        if (base := self.repairs[copy]) is not None:
            return Candidate(copy, base, None, self.promises[copy])
        return Candidate(copy, self.position(copy), self.position(copy), self.promises[copy])

    def dies(self) -> bool:
        return self.rng.random() < 0.15

    def run(self, present: list[int]) -> None:
        """One process, with these copies, until it is killed."""
        found = [self.candidate(copy) for copy in present]
        chosen = elect(found)
        assert chosen is not None, "two copies were there"
        epoch = next_epoch(found)
        for copy in present:
            if self.dies():
                return
            self.promises[copy] = epoch
        serving = [chosen]
        waiting = [copy for copy in present if copy != chosen]
        sequence = self.position(chosen).sequence
        if not self.repair(chosen, waiting.pop(), serving, self.position(chosen)):
            return
        stored = [value for _, value in self.logs[chosen]]
        assert [value for value in stored if value in set(self.acknowledged)] == self.acknowledged
        while not self.dies():
            what = self.rng.random()
            if what < 0.1 and len(serving) == 3:
                serving.remove(self.rng.choice(serving))
            elif what < 0.2 and len(serving) == 2:
                back = next((copy for copy in present if copy not in serving), None)
                if back is not None and not self.repair(serving[0], back, serving, self.position(serving[0])):
                    return
            else:
                sequence += 1
                self.next += 1
                for count, copy in enumerate(self.rng.sample(serving, len(serving)), 1):
                    self.logs[copy].append((Position(epoch, sequence), self.next))
                    if count == 2:
                        self.acknowledged.append(self.next)
                    if self.dies():
                        return

    def repair(self, source: int, copy: int, serving: list[int], base: Position) -> bool:
        """Bring a copy up to date; False where the process died meanwhile."""
        if self.logs[copy] != self.logs[source]:
            self.repairs[copy] = base
            if self.dies():
                self.logs[copy] = self.logs[copy][: len(self.logs[copy]) // 2]
                return False
        self.logs[copy] = list(self.logs[source])
        self.repairs[copy] = None
        serving.append(copy)
        return True


def test_nothing_acknowledged_is_ever_missing_whatever_dies() -> None:
    rng = random.Random(20_260)
    for _ in range(300):
        model = Model(rng)
        for _ in range(12):
            present = rng.choice([[0, 1], [0, 2], [1, 2], [0, 1, 2]])
            # Two copies of which one is under repair may lack what the third has: then a start is refused, rightly.
            if elect([model.candidate(copy) for copy in present]) is not None:
                model.run(present)
            assert elect([model.candidate(copy) for copy in range(3)]) is not None, "all three are there"
        assert len(model.acknowledged) == len(set(model.acknowledged))
