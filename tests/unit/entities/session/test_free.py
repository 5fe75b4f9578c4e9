"""The order of free sessions, and of receivers that wait for one."""

from typing import Any

import pytest

from isthmus.entities.session.free import FreeSessions


class Free:
    """A session, reduced to who has locked it."""

    def __init__(self) -> None:
        self.hold = None
        self.has_available = True


def test_sessions_are_given_out_in_the_order_in_which_they_became_free_i1() -> None:
    first, second, locked, empty = sessions = [Free() for _ in range(4)]
    free: Any = FreeSessions(())
    locked.hold, empty.has_available = object(), False
    for session in (locked, empty, first, second, first):
        free.add(session)
    given = []
    while (session := free.next()) is not None:
        given.append(sessions.index(session))
        free.discard(session)
    assert given == [0, 1]


def test_receivers_are_served_in_the_order_in_which_they_came_i1() -> None:
    free: Any = FreeSessions(())
    reported: list[str] = []
    for name in ("a", "b", "c"):
        free.wait(lambda name=name: reported.append(name) or free.discard(free.next()))
    free.add(Free())
    assert reported == ["a"]
    free.add(Free())
    assert (reported, free.waiting_count) == (["a", "b"], 1)


def test_a_receiver_that_gives_its_session_back_at_once_does_not_start_a_round_of_its_own() -> None:
    free: Any = FreeSessions(())
    session, reported = Free(), []

    def give_back() -> None:
        reported.append("first")
        free.add(session)
        assert reported == ["first"]

    free.wait(give_back)
    free.wait(lambda: reported.append("second"))
    free.add(session)
    assert reported == ["first", "second"]


def test_who_waits_no_longer_is_not_called() -> None:
    free: Any = FreeSessions(())
    reported: list[str] = []

    def on_free() -> None:
        reported.append("reported")

    free.wait(on_free)
    assert free.cancel(on_free)
    assert not free.cancel(on_free)
    free.add(Free())
    assert reported == []


def test_a_receiver_that_raises_keeps_no_other_one_from_being_called() -> None:
    free: Any = FreeSessions(())
    reported: list[str] = []

    def odd() -> None:
        reported.append("odd")
        raise ValueError("odd")

    free.wait(odd)
    free.wait(lambda: reported.append("even") or free.discard(free.next()))  # type: ignore[func-returns-value]
    with pytest.raises(ValueError, match="odd"):
        free.add(Free())
    assert reported == ["odd", "even"]
    reported.clear()
    free.wait(odd)
    free.wait(lambda: reported.append("even"))
    with pytest.raises(ValueError, match="odd"):
        free.wake_all()
    assert reported == ["odd", "even"]
