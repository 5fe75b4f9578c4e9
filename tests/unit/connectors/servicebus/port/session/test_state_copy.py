"""Which session states are read and set, by the results of earlier reads and writes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.servicebus.port.session import state_copy
from isthmus.connectors.servicebus.port.session.state_copy import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    NOTHING,
    TOLD_ATTEMPTS,
    Copied,
    StateCopies,
    StateToSet,
    digest_of,
)

A, B = digest_of(b"a"), digest_of(b"b")


def read(copies: StateCopies, session: str, state: bytes | None, now: float = 0.0) -> None:
    """One hold of the route: a message came, the state was read, everything is settled."""
    copies.lock_granted(session)
    copies.read(session, state, now)
    copies.settled(session)


def to_set(copies: StateCopies, now: float = 0.0) -> list[StateToSet]:
    return copies.to_set(10, now)[0]


def test_a_state_is_set_when_the_messages_of_the_hold_are_settled() -> None:
    copies = StateCopies({})
    assert copies.lock_granted("s")
    copies.read("s", b"a", 0.0)
    assert copies.to_set(10, 0.0) == ([], [])
    copies.settled("s")
    (reported,) = to_set(copies)
    assert reported[:2] == ("s", b"a")
    assert to_set(copies) == []  # it is under way
    assert not copies.is_done
    assert copies.was_set(reported) == Copied("s", A, is_due=False)
    assert copies.is_done


def test_what_was_copied_last_is_not_set_again_i2() -> None:
    copies = StateCopies({"s": A})
    read(copies, "s", b"a")
    assert copies.to_set(10, 0.0) == ([], [Copied("s", A, is_due=False)])
    read(copies, "s", b"b")
    (reported,) = to_set(copies)
    assert reported.state == b"b"
    copies.was_set(reported)
    read(copies, "s", b"b")
    assert to_set(copies) == []


def test_an_empty_state_is_set_only_where_another_was_copied_i3() -> None:
    copies = StateCopies({})
    for state in (None, b""):
        read(copies, "s", state)
        assert copies.to_set(10, 0.0) == ([], [Copied("s", NOTHING, is_due=False)])
    read(copies, "s", b"a")
    copies.was_set(*to_set(copies))
    read(copies, "s", None)
    (reported,) = to_set(copies)
    assert reported.state is None
    assert copies.was_set(reported) == Copied("s", NOTHING, is_due=False)


def test_the_first_state_of_a_session_is_set_only_where_the_target_has_none_i3() -> None:
    copies = StateCopies({})
    for state, is_first in ((b"a", True), (b"b", False), (None, False), (b"a", True)):
        read(copies, "s", state)
        (reported,) = to_set(copies)
        assert reported.is_first is is_first
        copies.was_set(reported)


def test_a_value_that_is_older_ends_nothing_and_is_not_tried_again_i1() -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    (old,) = to_set(copies)
    read(copies, "s", b"b")
    assert to_set(copies) == []  # I4
    assert copies.was_set(old) == Copied("s", A, is_due=True)
    (new,) = to_set(copies)
    assert new.state == b"b"
    assert copies.was_set(new) == Copied("s", B, is_due=False)


def test_an_older_value_that_failed_gives_way_i1() -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    (old,) = to_set(copies)
    read(copies, "s", b"b")
    copies.not_set(old, "held", 0.0)
    (new,) = to_set(copies, 100.0)
    assert (old.state, new.state) == (b"a", b"b")


def test_an_older_value_that_failed_lets_no_receiver_read_the_session_twice() -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    (old,) = to_set(copies)
    copies.lock_granted("s")
    copies.lost("s")
    assert copies.to_read(10, 0.0) == ["s"]
    copies.not_set(old, "held", 0.0)
    assert copies.to_read(10, 100.0) == []  # the link that reads it is there still
    copies.read("s", b"b", 100.0)
    assert [each.state for each in to_set(copies, 100.0)] == [b"b"]


def test_while_an_older_value_is_being_set_no_other_is_though_a_look_failed_i4() -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    (old,) = to_set(copies)
    copies.lock_granted("s")
    copies.lost("s")
    assert copies.to_read(10, 0.0) == ["s"]
    copies.failed("s", "another receiver has it locked at the source", 0.0)
    assert copies.to_read(10, 100.0) == ["s"]
    copies.read("s", b"b", 100.0)
    assert to_set(copies, 200.0) == []
    copies.was_set(old)
    assert [each.state for each in to_set(copies, 300.0)] == [b"b"]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_first_state_that_was_perhaps_set_is_followed_by_the_next_i3(is_killed: bool) -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    (first,) = to_set(copies)
    assert (first.is_first, first.own) == (True, frozenset())
    copies.target_lost()
    if is_killed:
        copies = StateCopies({}, ["s"], {"s": {A}})
    read(copies, "s", b"b")
    (reported,) = to_set(copies)
    assert (reported.state, reported.is_first, reported.own) == (b"b", True, frozenset({A}))
    copies.target_lost()
    read(copies, "s", None)
    (reported,) = to_set(copies)
    assert (reported.state, reported.is_first, reported.own) == (None, True, frozenset({A, B}))
    assert copies.was_set(reported) == Copied("s", NOTHING, is_due=False)


def test_a_session_that_is_locked_at_the_target_is_tried_later_each_time_and_reported_once_it_lasts() -> None:
    copies = StateCopies({})
    read(copies, "s", b"a")
    read(copies, "t", b"a")
    now, delays = 0.0, []
    for attempt in range(1, 12):
        reported = to_set(copies, now)
        if attempt == 1:
            copies.was_set(reported.pop())  # nothing else waits for it
        assert [each.session_id for each in reported] == ["s"]
        copies.not_set(reported[0], "another receiver has it locked", now)
        assert to_set(copies, now) == []
        assert bool(copies.note) == (attempt >= TOLD_ATTEMPTS)
        delays.append(copies.deadline() - now)
        now = copies.deadline()
    assert delays[:3] == [FIRST_RETRY_SECONDS, 2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS]
    assert delays[-1] == LAST_RETRY_SECONDS
    assert copies.note == "the state of session 's' is not copied yet: another receiver has it locked"
    assert copies.left == copies.note
    copies.was_set(*to_set(copies, now))
    assert copies.note == copies.left == ""
    assert copies.deadline() == math.inf


def test_the_note_counts_the_others() -> None:
    copies = StateCopies({})
    for name in "ab":
        read(copies, name, b"x")
        for _ in range(TOLD_ATTEMPTS):
            copies.failed(name, "held", 0.0)
    assert copies.note == "the state of session 'a' and 1 more is not copied yet: held"


def test_a_session_that_was_due_at_the_start_is_read_over_a_link_of_its_own() -> None:
    copies = StateCopies({"s": A}, ["s", "t"])
    assert copies.to_read(1, 0.0) == ["s"]
    assert copies.to_read(10, 0.0) == ["t"]
    assert copies.to_read(10, 0.0) == []
    copies.read("s", b"a", 0.0)
    copies.read("t", b"b", 0.0)
    states, done = copies.to_set(10, 0.0)
    assert [each.session_id for each in states] == ["t"]
    assert done == [Copied("s", A, is_due=False)]


def test_a_session_that_is_lost_is_read_again() -> None:
    copies = StateCopies({})
    copies.lock_granted("s")
    copies.read("s", b"a", 0.0)
    copies.lost("s")
    assert to_set(copies) == []
    assert copies.to_read(10, 0.0) == ["s"]
    assert not copies.lock_granted("s")  # the route has it again, and reads it over that link
    assert copies.to_read(10, 0.0) == []
    copies.settled("s")
    assert copies.to_read(10, 0.0) == ["s"]  # it was not read then, either


def test_what_was_under_way_when_a_connection_was_lost_is_tried_again_at_once() -> None:
    copies = StateCopies({}, ["r"])
    read(copies, "s", b"a")
    assert copies.to_read(10, 0.0) == ["r"]
    (reported,) = to_set(copies)
    copies.source_lost()
    copies.target_lost()
    assert copies.to_read(10, 0.0) == ["r"]
    (again,) = to_set(copies)
    assert again[:2] == reported[:2]
    assert again.number != reported.number


def test_to_another_target_nothing_was_copied() -> None:
    copies = StateCopies({"s": A})
    copies.forget_copied()
    read(copies, "s", b"a")
    assert [each.state for each in to_set(copies)] == [b"a"]


def test_changed_is_due_once() -> None:
    copies = StateCopies({})
    assert copies.changed("s")
    assert not copies.changed("s")
    assert not copies.lock_granted("s")
    assert copies.left == "the state of session 's' is not copied yet"


def test_a_state_that_changed_while_an_older_one_waits_for_the_target_is_read_again_i1() -> None:
    copies = StateCopies({}, ["s"])
    assert copies.to_read(10, 0.0) == ["s"]
    copies.read("s", b"a", 0.0)
    (old,) = to_set(copies)
    copies.not_set(old, "another receiver has it locked", 0.0)
    assert not copies.changed("s")
    assert copies.to_read(10, 100.0) == ["s"]
    copies.read("s", b"b", 100.0)
    assert [each.state for each in to_set(copies, 100.0)] == [b"b"]


def test_many_large_states_are_read_in_their_order_i4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copy, "WAITING_BYTES", 10)
    copies = StateCopies({}, [str(number) for number in range(5)])
    now = 0.0
    done: set[str] = set()
    for _ in range(100):
        now += LAST_RETRY_SECONDS
        for name in copies.to_read(2, now):
            copies.read(name, b"12345", now)
        assert copies._waiting_bytes <= 10
        states, _ = copies.to_set(1, now)
        for each in states:
            if each.session_id == "0" and len(done) < 4:
                copies.not_set(each, "held", now)  # and it delays no other
            else:
                done.add(each.session_id)
                copies.was_set(each)
    assert len(done) == 5
    assert copies._waiting_bytes == 0


@st.composite
def _steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = [
        "hold",
        "read",
        "settle",
        "lose",
        "set",
        "fail",
        "own",
        "source_lost",
        "target_lost",
        "change",
        "put",
        "kill",
    ]
    return draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 2), st.integers(0, 2)), max_size=60))


@given(_steps())
def test_whatever_happens_the_target_has_the_last_state_in_the_end_i1(steps: list[tuple[str, int, int]]) -> None:
    """The source's state changes only while the route has not locked the session; what was due stays due until it is copied."""
    names = ["s0", "s1", "s2"]
    values = [None, b"a", b"b"]
    source: dict[str, bytes | None] = dict.fromkeys(names)
    target: dict[str, bytes | None] = dict.fromkeys(names)
    remembered: dict[str, bytes] = {}
    tried: dict[str, set[bytes]] = {}
    due: set[str] = set()
    copies = StateCopies({})
    locked: set[str] = set()
    reading: set[str] = set()
    setting: list[StateToSet] = []
    now = 0.0

    def note(copied: Copied) -> None:
        remembered[copied.session_id] = copied.digest
        tried.pop(copied.session_id, None)
        (due.add if copied.is_due else due.discard)(copied.session_id)

    def take(reported: StateToSet) -> None:
        there = target[reported.session_id]
        if not reported.is_first or there is None or digest_of(there) in reported.own:
            target[reported.session_id] = reported.state or None

    def step(kind: str, which: int, value: int) -> None:
        nonlocal copies
        name = names[which]
        if kind == "hold" and name not in locked | reading:
            locked.add(name)
            copies.lock_granted(name)
            due.add(name)
        elif kind == "read" and name in locked:
            copies.read(name, source[name], now)
        elif kind in ("settle", "lose") and name in locked:
            locked.discard(name)
            (copies.settled if kind == "settle" else copies.lost)(name)
        elif kind == "put" and name not in locked | reading:
            source[name] = values[value]
            copies.changed(name)
            due.add(name)
        elif kind == "change":
            copies.changed(name)
            due.add(name)
        elif kind == "own":
            if not reading:
                reading.update(copies.to_read(3, now))
            else:
                done = reading.pop()
                if done in locked:  # its link was closed
                    return
                if value == 0:
                    copies.failed(done, "held", now)
                else:
                    copies.read(done, source[done], now)
        elif kind in ("set", "fail"):
            if not setting:
                states, done_now = copies.to_set(3, now)
                for first in (state for state in states if state.is_first):
                    tried.setdefault(first.session_id, set()).add(digest_of(first.state))
                setting.extend(states)
                assert len({each.session_id for each in setting}) == len(setting)  # I4
                for each in done_now:
                    note(each)
            else:
                reported = setting.pop(0)
                if kind == "set":
                    take(reported)
                    note(copies.was_set(reported))
                else:
                    if value == 0:  # it timed out, and was set all the same
                        take(reported)
                    copies.not_set(reported, "held", now)
        elif kind == "source_lost":
            reading.clear()
            for each in list(locked):
                copies.lost(each)
            locked.clear()
            copies.source_lost()
        elif kind in ("target_lost", "kill"):
            for reported in setting[:value]:  # the outcome of these is unknown
                take(reported)
            setting.clear()
            copies.target_lost()
            if kind == "kill":
                reading.clear()
                locked.clear()
                known = {name: digest for name, digest in remembered.items() if digest}
                copies = StateCopies(known, sorted(due), tried)

    for each in steps:
        now += 1.0
        step(*each)
    for name in list(locked):
        copies.settled(name)
        locked.discard(name)
    for _ in range(40):
        now += LAST_RETRY_SECONDS
        for kind in ("own", "own", "own", "own", "set", "set", "set", "set"):
            step(kind, 0, 1)
    assert target == source
    assert not due
    assert {name: digest_of(state) for name, state in target.items()} == dict.fromkeys(names, NOTHING) | remembered
