"""Fixtures of all tests of verbs."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(name="interrupts", autouse=True)
def _interrupts() -> Iterator[object]:
    """SIGINT, SIGTERM and SIGHUP as in a terminal, also where the tests were started in the background, which ignores it: the handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    ending = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    closing = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, ending)
    signal.signal(signal.SIGHUP, closing)
