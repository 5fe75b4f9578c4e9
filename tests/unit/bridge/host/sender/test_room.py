"""The bound of what a plain write keeps in memory."""

from __future__ import annotations

import threading

from isthmus.bridge.host.sender.room import SenderRoom


def test_rows_of_any_size_get_through_i1() -> None:
    room = SenderRoom(100)
    room.add(1000)
    room.took(1000)
    room.add(1000)


def test_who_adds_waits_until_enough_is_taken() -> None:
    room = SenderRoom(100)
    room.add(100)
    over = threading.Event()

    def add() -> None:
        room.add(1)
        over.set()

    threading.Thread(target=add).start()
    assert not over.is_set()
    room.took(1)
    assert over.wait(10)


def test_nothing_waits_for_a_loop_that_has_ended() -> None:
    room = SenderRoom(100)
    room.close()
    room.add(1000)
    room.add(1000)
