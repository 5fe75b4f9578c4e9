"""A planned fail-over against members in memory, killed before each of its actions and continued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.errors import ConnectionLostError, NotAllowedError
from isthmus.pairing.failover import failover as failover_module
from isthmus.pairing.failover.failover import Failover
from isthmus.pairing.failover.movable import is_movable
from isthmus.pairing.failover.moved import Moved
from isthmus.pairing.failover.stop_layer import stop_layers
from isthmus.pairing.pair_error import NotEmptyError
from isthmus.pairing.state.state import PairState, Phase
from isthmus.topology.pair.description import Description, Key, kept


class Killed(BaseException):
    """The process was killed."""


class Machine:
    """Counts what is done, and kills before one of it."""

    def __init__(self, kill_at: int = -1) -> None:
        self.kill_at = kill_at
        self.done = 0

    def act(self) -> None:
        if self.done == self.kill_at:
            raise Killed
        self.done += 1


class FakeMember:
    """A namespace in memory.

    Attributes:
        statuses: by path.
        waiting: messages by path.
        marker: what was written last.
    """

    def __init__(self, alias: str, entities: Iterable[Description], waiting: Mapping[str, int] | None = None) -> None:
        self.alias = alias
        self._entities = list(entities)
        self.statuses = {each.path: each.status for each in self._entities if each.kind != "rule"}
        self.waiting = dict(waiting or {})
        self.marker: Mapping[str, object] = PairState(pair="contoso", active="ewr", standby="jfk").marker
        self.machine = Machine()
        self.order: list[str] = []
        self.refuses: set[str] = set()

    def descriptions(self) -> list[Description]:
        return [each.with_settings(status=self.statuses.get(each.path)) for each in self._entities]

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        return {each.path: Counts(active=self.waiting[each.path]) for each in entities if self.waiting.get(each.path)}

    def set_status(self, entity: Description, status: str) -> None:
        self.machine.act()
        if entity.path in self.refuses:
            raise AdministrationError(self.alias, "refused with 400 (the entity to forward to does not exist)")
        self.statuses[entity.path] = status
        self.order.append(f"{entity.path} {status}")

    def map(self, work: Callable[[Any], Any], asked: Iterable[Any]) -> list[Any]:
        return [work(each) for each in asked]

    def read_marker(self, pair: str) -> Mapping[str, object]:
        return self.marker

    def write_marker(
        self, pair: str, value: Mapping[str, object], *, unless: Callable[[Mapping[str, object]], bool]
    ) -> bool:
        if unless(self.marker):
            return False
        self.machine.act()
        self.marker = value
        return True


ENTITIES = (
    Description(kind="queue", names=("orders",), settings={"lock_duration": 0}),
    Description(kind="queue", names=("off",), settings={"status": "Disabled"}),
    Description(kind="topic", names=("flights",)),
    Description(kind="subscription", names=("flights", "board")),
    Description(kind="rule", names=("flights", "board", "$Default")),
)
OPEN = {"orders": "Active", "off": "Disabled", "flights": "Active", "flights/Subscriptions/board": "Active"}
FENCED = {
    "orders": "Disabled",
    "off": "Disabled",
    "flights": "SendDisabled",
    "flights/Subscriptions/board": "ReceiveDisabled",
}


class Stage:
    """Two members, the disk, and a fail-over between them."""

    def __init__(self, waiting: Mapping[str, int] | None = None) -> None:
        self.ewr = FakeMember("ewr", ENTITIES, waiting)
        self.jfk = FakeMember("jfk", ENTITIES)
        self.disk = PairState(pair="contoso", active="ewr", standby="jfk")
        self.moved: list[str] = []
        self.refusal = ""

    def kill_at(self, number: int) -> Machine:
        machine = Machine(number)
        self.ewr.machine = self.jfk.machine = machine
        self.machine = machine
        return machine

    def save(self, state: PairState) -> None:
        self.machine.act()
        self.disk = state

    def move(self, state: PairState, entity: Description) -> Moved:
        self.machine.act()
        old, new = (self.ewr, self.jfk) if state.active == "ewr" else (self.jfk, self.ewr)
        assert old.statuses[entity.path] in {"Active", "SendDisabled"}
        assert new.statuses[entity.path] in {"Active", "ReceiveDisabled"}
        count = 0 if self.refusal else old.waiting.pop(entity.path, 0)
        new.waiting[entity.path] = new.waiting.get(entity.path, 0) + count
        self.moved.append(entity.path)
        return Moved(count, self.refusal)

    def failover(self) -> Failover:
        return Failover(self.save, {"ewr": self.ewr, "jfk": self.jfk}, self.move)

    def begin(self, *, leaves: bool = False) -> PairState:
        old = self.failover().statuses(self.disk.active)
        self.save(self.disk.begin(1.0, statuses=old, consume_ms=0, leaves=leaves))
        return self.disk


def test_a_planned_one_stops_moves_fences_and_opens() -> None:
    stage = Stage({"orders": 7})
    stage.kill_at(-1)
    after = stage.failover().run(stage.begin())
    assert (after.active, after.phase, after.leads_to) == ("jfk", Phase.STEADY, "jfk")
    assert stage.ewr.statuses == FENCED
    assert stage.jfk.statuses == OPEN
    assert stage.jfk.waiting == {"orders": 7}
    assert stage.jfk.marker == after.marker


def test_and_back_with_the_statuses_that_the_active_one_had() -> None:
    stage = Stage()
    stage.kill_at(-1)
    stage.failover().run(stage.begin())
    after = stage.failover().run(stage.begin())
    assert after.active == "ewr"
    assert stage.ewr.statuses == OPEN
    assert stage.jfk.statuses == FENCED


@pytest.mark.parametrize("back", [False, True])
def test_killed_anywhere_it_is_carried_on_to_the_same_end(back: bool) -> None:
    """I1, I2: before each saving, change of a status and move."""
    number, ends = 0, 0
    while not ends:
        stage = Stage({} if back else {"orders": 7})
        stage.kill_at(-1)
        if back:
            stage.failover().run(stage.begin())
            stage.jfk.waiting["orders"] = 7
        machine = stage.kill_at(number)
        try:
            stage.failover().run(stage.begin())
            ends = 1
        except Killed:
            assert machine.done == number
        old, new = (stage.jfk, stage.ewr) if back else (stage.ewr, stage.jfk)
        # The member behind the alias accepts applications, and the former one accepts none.
        assert stage.disk.leads_to != new.alias or (new.statuses == OPEN and old.statuses == FENCED)
        assert stage.disk.leads_to != old.alias or old.statuses["flights/Subscriptions/board"] == "Active"
        stage.kill_at(-1)
        state = stage.disk
        if state.phase is Phase.STEADY and state.epoch == (2 if back else 1):
            state = stage.begin()  # killed before anything was noted: the operator runs it again
        after = stage.failover().run(state)
        assert after.active == new.alias, number
        assert new.statuses == OPEN, number
        assert old.statuses == FENCED, number
        assert new.waiting == {"orders": 7}, number
        assert not old.waiting, number
        number += 1
    assert number > 12


def test_what_an_operator_has_closed_is_moved_and_closed_again() -> None:
    stage = Stage({"off": 3})
    stage.kill_at(-1)
    for active in ("jfk", "ewr"):
        after = stage.failover().run(stage.begin())
        assert after.active == active
        member = stage.jfk if active == "jfk" else stage.ewr
        assert member.waiting == {"off": 3}
        assert member.statuses == OPEN


def test_an_entity_that_only_the_new_member_holds_keeps_its_status() -> None:
    stage = Stage()
    stage.jfk = FakeMember(
        "jfk", [*ENTITIES, Description(kind="queue", names=("own",), settings={"status": "Disabled"})]
    )
    stage.kill_at(-1)
    stage.failover().run(stage.begin())
    assert stage.jfk.statuses == {**OPEN, "own": "Disabled"}


def test_nothing_is_moved_to_where_it_could_be_dropped_as_a_duplicate() -> None:
    """I4: the message was there before, and its MessageId is still in the history."""
    detecting = Description(
        kind="queue", names=("once",), settings={"requires_duplicate_detection": True, "lock_duration": 0}
    )
    leading = Description(kind="queue", names=("front",), settings={"forward_to": "once"})
    entities = kept([detecting, leading, *ENTITIES])
    assert [
        each.path for each in entities.values() if each.kind in {"queue", "topic"} and not is_movable(each, entities)
    ] == [
        "once",
        "front",
    ]
    stage = Stage()
    stage.ewr, stage.jfk = FakeMember("ewr", [detecting], {"once": 1}), FakeMember("jfk", [detecting])
    stage.kill_at(-1)
    with pytest.raises(NotEmptyError, match=r"once \(1\) \(once: duplicate detection would drop"):
        stage.failover().run(stage.begin())
    assert stage.moved == []
    assert stage.ewr.waiting == {"once": 1}


def test_what_cannot_be_moved_brings_it_back() -> None:
    """I5."""
    stage = Stage({"orders": 1, "flights/Subscriptions/board": 3})
    stage.kill_at(-1)
    with pytest.raises(NotEmptyError, match=r"ewr is still active.*flights/Subscriptions/board \(3\).*--leave"):
        stage.failover().run(stage.begin())
    assert (stage.disk.active, stage.disk.phase, stage.disk.epoch) == ("ewr", Phase.STEADY, 2)
    assert stage.ewr.statuses == OPEN
    assert stage.ewr.waiting == {"orders": 1, "flights/Subscriptions/board": 3}
    assert stage.moved == []  # nothing is moved ahead of what stays


def test_killed_while_it_goes_back_it_still_goes_back() -> None:
    """I2, I5."""
    number = 0
    while True:
        stage = Stage({"flights/Subscriptions/board": 3})
        stage.kill_at(-1)
        state = stage.begin()
        stage.kill_at(number)
        try:
            stage.failover().run(state)
        except NotEmptyError:
            break
        except Killed:
            pass
        stage.kill_at(-1)
        if stage.disk.phase is not Phase.REOPENING:
            with pytest.raises(NotEmptyError):
                stage.failover().run(stage.disk)
        else:
            stage.failover().run(stage.disk)
        assert stage.disk.active == "ewr"
        assert stage.ewr.statuses == OPEN
        number += 1
    assert number > 5


def test_the_operator_may_leave_them() -> None:
    stage = Stage({"orders": 1, "flights/Subscriptions/board": 3})
    stage.kill_at(-1)
    work = stage.failover()
    after = work.run(stage.begin(leaves=True))
    assert after.active == "jfk"
    assert work.left == {"flights/Subscriptions/board": 3}
    assert stage.jfk.waiting["orders"] == 1


def test_a_refusal_of_the_new_member_brings_it_back() -> None:
    stage = Stage({"orders": 1})
    stage.refusal = "the queue is full"
    stage.kill_at(-1)
    with pytest.raises(NotEmptyError, match="the queue is full"):
        stage.failover().run(stage.begin())
    assert stage.ewr.statuses == OPEN


def test_a_fenced_member_to_which_nothing_can_be_moved_is_fenced_again() -> None:
    stage = Stage()
    stage.kill_at(-1)
    stage.failover().run(stage.begin())
    assert stage.ewr.statuses == FENCED
    stage.jfk.waiting["orders"] = 1
    stage.refusal = "the queue is full"
    with pytest.raises(NotEmptyError):
        stage.failover().run(stage.begin())
    assert stage.jfk.statuses == OPEN
    assert stage.ewr.statuses == FENCED


def test_what_was_moved_before_it_goes_back_is_reported() -> None:
    """I5: it waits at the other member."""
    stage = Stage({"off": 2, "orders": 1})
    stage.kill_at(-1)
    work = stage.failover()

    def move(state: PairState, entity: Description) -> Moved:
        stage.refusal = "the queue is full" if entity.path == "orders" else ""
        return stage.move(state, entity)

    work.move = move
    with pytest.raises(
        NotEmptyError, match=r"orders \(1\).*; 2 messages were moved before, and wait at jfk"
    ) as reported:
        work.run(stage.begin())
    assert reported.value.moved == 2


def test_what_will_not_pass_by_itself_brings_it_back_and_is_not_tried_for_ever() -> None:
    """The alias leads to no member meanwhile."""
    stage = Stage({"off": 2, "orders": 1})
    stage.kill_at(-1)
    work = stage.failover()

    def move(state: PairState, entity: Description) -> Moved:
        if entity.path == "off":
            return stage.move(state, entity)
        error = NotAllowedError("it forwards")
        error.attributes["moved"] = 3
        raise error

    work.move = move
    with pytest.raises(
        NotEmptyError, match=r"orders \(1\) \(orders: it forwards\); 5 messages were moved before"
    ) as reported:
        work.run(stage.begin())
    assert reported.value.moved == stage.disk.moved == 5
    assert (stage.disk.phase, stage.disk.active, stage.ewr.statuses) == (Phase.STEADY, "ewr", OPEN)
    again = stage.failover()
    again.move = move
    assert again.run(stage.begin(leaves=True)).active == "jfk"
    assert again.left == {"orders": 1}


def test_what_was_moved_before_a_member_refuses_its_counts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5, e.g. a key that was taken away meanwhile: the message says that the old member is active as before."""
    stage = Stage({"off": 2, "orders": 1})
    stage.kill_at(-1)
    work = stage.failover()

    def counts(entities: Iterable[Description]) -> Mapping[str, Counts]:
        if work.moved_dead:
            raise NotAllowedError("the key has no right to manage")
        if work.moved == 3:
            return {"orders": Counts(dead=4)}
        return FakeMember.counts(stage.ewr, entities)

    monkeypatch.setattr(stage.ewr, "counts", counts)
    work.move_dead = lambda state, entity: Moved(4)
    with pytest.raises(NotAllowedError) as reported:
        work.run(stage.begin())
    [note] = reported.value.__notes__
    assert note.startswith(
        "the fail-over was given up; ewr is active as before; 3 messages and 4 dead letters were moved"
    )
    assert (stage.disk.active, stage.disk.moved, stage.disk.moved_dead) == ("ewr", 3, 4)


def test_what_was_moved_before_a_connection_was_lost_is_counted_i7() -> None:
    stage = Stage({"orders": 1})
    stage.kill_at(-1)
    work = stage.failover()

    def move(state: PairState, entity: Description) -> Moved:
        error = ConnectionLostError("jfk")
        error.attributes["moved"] = 3
        raise error

    work.move = move
    with pytest.raises(ConnectionLostError):
        work.run(stage.begin())
    assert (stage.disk.phase, stage.disk.moved) == (Phase.MOVING, 3)


@pytest.mark.parametrize("killed_in", [Phase.MOVING, Phase.FENCING, Phase.OPENING])
def test_whoever_carries_it_on_counts_from_what_was_moved_and_left_before_i7(killed_in: Phase) -> None:
    stage = Stage({"off": 2, "orders": 1, "flights/Subscriptions/board": 4})
    stage.kill_at(-1)

    def save(state: PairState) -> None:
        stage.save(state)
        if state.phase is killed_in and state.moved:
            raise Killed

    state = stage.begin(leaves=True)
    killed = stage.failover()
    killed.save = save
    with pytest.raises(Killed):
        killed.run(state)
    work = stage.failover()
    stage.disk = PairState.from_dict(stage.disk.to_dict())
    after = work.run(stage.disk)
    assert (work.moved, work.left) == (3, {"flights/Subscriptions/board": 4})
    assert (after.moved, after.left) == (3, {"flights/Subscriptions/board": 4})
    stage.jfk.waiting.clear()
    back = stage.failover()
    back.run(stage.begin())
    assert (back.moved, back.left) == (0, {})


def test_what_was_moved_before_a_kill_is_reported_where_it_goes_back_i7() -> None:
    stage = Stage({"off": 2, "orders": 1})
    stage.kill_at(-1)

    def save(state: PairState) -> None:
        stage.save(state)
        if state.moved:
            raise Killed

    state = stage.begin()
    killed = stage.failover()
    killed.save = save
    with pytest.raises(Killed):
        killed.run(state)
    stage.refusal = "the queue is full"
    with pytest.raises(NotEmptyError) as reported:
        stage.failover().run(stage.disk)
    assert reported.value.moved == 2


def test_a_pass_that_takes_longer_than_the_locks_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was locked, or due soon, when it began comes afterwards."""
    stage = Stage({"orders": 7})
    stage.kill_at(-1)
    clock = [0.0]
    monkeypatch.setattr(failover_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(failover_module.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    work = stage.failover()
    late = [1]

    def move(state: PairState, entity: Description) -> Moved:
        done = stage.move(state, entity)
        clock[0] += 600.0
        if late:
            stage.ewr.waiting["orders"] = late.pop()
        return done

    work.move = move
    assert work.run(stage.begin()).active == "jfk"
    assert (work.moved, stage.jfk.waiting) == (8, {"orders": 8})


def test_a_forced_one_that_has_to_open_first() -> None:
    stage = Stage()
    stage.kill_at(-1)
    stage.failover().run(stage.begin())
    forced = stage.disk.begin_forced(2.0)
    assert forced.phase is Phase.OPENING
    after = stage.failover().run(forced)
    assert (after.active, after.leads_to) == ("ewr", "ewr")
    assert stage.ewr.statuses == OPEN


def test_a_forced_one_restores_what_a_planned_one_has_changed_at_the_new_member() -> None:
    """A queue that the operator has suspended is made to take what is moved."""
    changed = 0
    for number in range(1, 50):
        stage = Stage({"off": 1})
        stage.kill_at(number)
        stage.begin()
        with suppress(Killed):
            stage.failover().run(stage.disk)
            break
        changed += stage.jfk.statuses != OPEN
        if stage.disk.active == "ewr":
            stage.kill_at(-1)
            stage.disk = stage.disk.begin_forced(2.0)
            stage.failover().run(stage.disk)
            assert stage.jfk.statuses == OPEN
    assert changed > 1


def test_what_forwards_is_stopped_before_its_target() -> None:
    """I3."""
    entities: dict[Key, Description] = kept(
        [
            Description(kind="queue", names=("last",)),
            Description(kind="queue", names=("first",), settings={"forward_to": "flights"}),
            Description(kind="topic", names=("flights",)),
            Description(kind="subscription", names=("flights", "s"), settings={"forward_to": "last"}),
            Description(kind="queue", names=("ring",), settings={"forward_to": "round"}),
            Description(kind="queue", names=("round",), settings={"forward_to": "ring"}),
        ]
    )
    assert [[each.path for each in layer] for layer in stop_layers(entities)] == [
        ["first"],
        ["flights"],
        ["last"],
        ["ring", "round"],
    ]


def test_a_target_is_stopped_once_nothing_waits_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3."""
    entities = [
        Description(kind="queue", names=("a",), settings={"forward_to": "b"}),
        Description(kind="queue", names=("b",)),
    ]
    stage = Stage()
    stage.ewr, stage.jfk = FakeMember("ewr", entities, {"a": 5}), FakeMember("jfk", entities)
    stage.kill_at(-1)
    looks = 0

    def pass_on(_: float) -> None:
        nonlocal looks
        looks += 1
        assert stage.ewr.statuses["b"] == "Active"
        stage.ewr.waiting["a"] -= 1

    monkeypatch.setattr("time.sleep", pass_on)
    stage.failover().run(replace(stage.begin()))
    assert looks == 5
    assert stage.ewr.order[:2] == ["a SendDisabled", "b SendDisabled"]


FORWARDING = (
    Description(kind="queue", names=("a",), settings={"forward_to": "b"}),
    Description(kind="queue", names=("b",), settings={"lock_duration": 0}),
)


def test_what_is_scheduled_in_an_entity_that_forwards_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due much later: it is not waited for."""
    stage = Stage()
    stage.ewr, stage.jfk = FakeMember("ewr", FORWARDING), FakeMember("jfk", FORWARDING)
    stage.kill_at(-1)
    monkeypatch.setattr(stage.ewr, "counts", lambda entities: {} if stage.moved else {"a": Counts(scheduled=2)})
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    assert stage.failover().run(stage.begin()).active == "jfk"
    assert stage.moved == ["a"]


def test_what_is_not_forwarded_may_be_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entity is suspended; it is not opened, since it would forward again."""
    entities = [FORWARDING[0].with_settings(status="ReceiveDisabled"), FORWARDING[1]]
    clock = [0.0]
    monkeypatch.setattr(failover_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(failover_module.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def move(state: PairState, entity: Description) -> Moved:
        assert stage.ewr.statuses["a"] == "Disabled"
        return Moved(0, "it forwards")

    for leaves in (False, True):
        stage = Stage()
        stage.ewr, stage.jfk = FakeMember("ewr", entities, {"a": 5}), FakeMember("jfk", entities)
        stage.kill_at(-1)
        work = stage.failover()
        work.move = move
        if not leaves:
            with pytest.raises(NotEmptyError, match="they are not forwarded"):
                work.run(stage.begin())
            continue
        assert work.run(stage.begin(leaves=True)).active == "jfk"
        assert work.left == {"a": 5}


def test_an_entity_that_cannot_be_stopped_brings_it_back() -> None:
    """E.g. a queue whose target was deleted. Its senders continue, and with each try the alias would lead to no member for longer."""
    stage = Stage({"orders": 1})
    stage.ewr.refuses = {"orders"}
    stage.kill_at(-1)
    with pytest.raises(AdministrationError) as reported:
        stage.failover().run(stage.begin())
    assert reported.value.__notes__ == ["the fail-over was given up; ewr is active as before"]
    assert (stage.disk.phase, stage.disk.active, stage.disk.leads_to) == (Phase.STEADY, "ewr", "ewr")
    assert (stage.ewr.statuses, stage.moved) == (OPEN, [])


def test_an_entity_that_cannot_be_closed_or_opened_keeps_no_other_from_it() -> None:
    """The alias leads to no member then, and nothing can be undone."""
    board = "flights/Subscriptions/board"
    stage = Stage()
    stage.ewr.refuses = {board}
    stage.kill_at(-1)
    work = stage.failover()
    assert work.run(stage.begin()).leads_to == "jfk"
    assert stage.ewr.statuses == {**FENCED, board: "Active"}
    assert list(work.refused) == [f"ewr/{board}"]
    stage.ewr.refuses = {"orders"}
    work = stage.failover()
    assert work.run(stage.begin()).leads_to == "ewr"
    assert stage.ewr.statuses == {**OPEN, "orders": "Disabled"}
    assert list(work.refused) == ["ewr/orders"]


@pytest.mark.parametrize(
    "remaining", [{"orders": Counts(scheduled=2)}, {"off": Counts(active=2)}], ids=["scheduled", "suspended"]
)
def test_receivers_get_no_time_for_what_they_cannot_receive(
    monkeypatch: pytest.MonkeyPatch, remaining: Mapping[str, Counts]
) -> None:
    """Sends are stopped meanwhile."""
    stage = Stage()
    stage.kill_at(-1)

    def counts(entities: Iterable[Description]) -> Mapping[str, Counts]:
        paths = {each.path for each in entities}
        return {path: each for path, each in remaining.items() if path in paths and path not in stage.moved}

    monkeypatch.setattr(stage.ewr, "counts", counts)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    state = replace(stage.begin(), consume_ms=3_600_000)
    assert stage.failover().run(state).active == "jfk"
    assert stage.moved == list(remaining)
