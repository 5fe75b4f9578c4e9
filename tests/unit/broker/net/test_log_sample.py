from __future__ import annotations

import logging

import pytest

from isthmus.broker.net.log_sample import LINES, SECONDS, LogSample, LogSampleFilter


def test_a_kind_has_so_many_lines_in_an_interval_i1_i2() -> None:
    sample = LogSample()
    assert sum(sample.admit("a", at / 1000) for at in range(5000)) == LINES
    assert sample.admit("b", 5.0)
    assert sample.close(SECONDS - 0.1) == []
    assert sample.close(SECONDS) == [("a", 5000 - LINES)]
    assert sample.admit("a", SECONDS)
    assert sample.close(3 * SECONDS) == []


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_lines_that_clients_cause_are_sampled_and_counted(caplog: pytest.LogCaptureFixture, level: int) -> None:
    now = [0.0]
    caplog.set_level(logging.INFO)
    sampled = LogSampleFilter(lambda: now[0])
    caplog.handler.addFilter(sampled)
    try:
        log = logging.getLogger("isthmus.broker.peer")
        for number in range(3 * LINES):
            log.log(level, "attach refused: peer=%s", number)
        log.error("a fault")
        logging.getLogger("isthmus.store").warning("attach refused: peer=%s", 0)
        now[0] = SECONDS
        sampled.report()
        sampled.report()
    finally:
        caplog.handler.removeFilter(sampled)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[LINES:] == [
        "a fault",
        "attach refused: peer=0",
        f"{2 * LINES} more lines in 10 s were left out, all of the kind: attach refused: peer=%s",
    ]
