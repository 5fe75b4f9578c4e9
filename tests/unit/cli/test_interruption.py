"""Ctrl-C and SIGTERM as a flag."""

from __future__ import annotations

import os
import signal

import pytest

from isthmus.cli.interruption import interruption, terminable

pytestmark = pytest.mark.usefixtures("interrupts")
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_i1_the_first_is_noted_and_the_second_does_what_it_did(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    with interruption("ending") as is_interrupted:
        assert not is_interrupted()
        signal.raise_signal(number)
        assert is_interrupted()
        assert capsys.readouterr().err == "ending\n"
        assert {each: signal.getsignal(each) for each in before} == before
    assert {each: signal.getsignal(each) for each in before} == before


def test_i1_ctrl_c_after_sigterm_interrupts() -> None:
    with interruption("ending"):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_i1_the_closing_of_the_terminal_is_a_request_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that was killed by it would leave messages that it had sent in their queue. It comes from the shell, and again when that has ended."""
    before = signal.getsignal(signal.SIGHUP)
    with interruption("ending") as is_interrupted:
        signal.raise_signal(signal.SIGHUP)
        assert is_interrupted()
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before
    assert capsys.readouterr().err == "ending\n"


def test_i2_a_closed_terminal_is_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption("ending") as is_interrupted:
            signal.raise_signal(signal.SIGHUP)
            assert not is_interrupted()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_was_before_comes_back_after_an_error(interrupts: object) -> None:
    with pytest.raises(ValueError, match="no"), interruption("ending"):
        raise ValueError("no")
    assert signal.getsignal(signal.SIGINT) is interrupts
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@SIGNALS
def test_i2_what_ignores_it_continues_ignoring_it(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interruption("ending") as is_interrupted:
            signal.raise_signal(number)
            assert not is_interrupted()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_ctrl_c_that_has_ended_the_reader_of_the_output_too_breaks_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `isthmus purge … 2>&1 | tee log`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", broken)
        with interruption("ending") as is_interrupted:
            signal.raise_signal(signal.SIGINT)
            assert is_interrupted()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_sigterm_is_ctrl_c_where_a_verb_is_terminable() -> None:
    with terminable():
        with interruption("ending") as is_interrupted:
            signal.raise_signal(signal.SIGTERM)
            assert is_interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_that_is_ignored_or_handled_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
