from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from isthmus.cli.hang_up import HangUp


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_is_a_stop_request_once_it_is_handled() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    wishes: list[bool] = []
    hang_up = HangUp(lambda: wishes.append(True))
    signal.raise_signal(signal.SIGHUP)
    assert wishes == []
    hang_up.listen()
    signal.raise_signal(signal.SIGHUP)
    assert wishes == [True]


def test_under_nohup_it_is_none() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wishes: list[bool] = []
    HangUp(lambda: wishes.append(True)).listen()
    signal.raise_signal(signal.SIGHUP)
    assert wishes == []
