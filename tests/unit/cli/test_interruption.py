"""Ctrl-C as a question."""

from __future__ import annotations

import signal

import pytest

from isthmus.cli.interruption import interruption

pytestmark = pytest.mark.usefixtures("interrupts")


def test_i1_the_first_is_noted_and_the_second_interrupts(
    interrupts: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with interruption("ending") as is_interrupted:
        assert not is_interrupted()
        signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
        assert capsys.readouterr().err == "ending\n"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is interrupts


def test_what_was_before_comes_back_after_an_error(interrupts: object) -> None:
    with pytest.raises(ValueError, match="no"), interruption("ending"):
        raise ValueError("no")
    assert signal.getsignal(signal.SIGINT) is interrupts


def test_i2_what_ignores_it_goes_on_ignoring_it() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruption("ending") as is_interrupted:
        signal.raise_signal(signal.SIGINT)
        assert not is_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
