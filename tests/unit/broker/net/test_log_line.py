from __future__ import annotations

import logging

import pytest

from isthmus.broker.net.log_line import LogLineFilter


def test_a_client_writes_no_line_of_its_own_i1_i2(caplog: pytest.LogCaptureFixture) -> None:
    lines = LogLineFilter()
    caplog.handler.addFilter(lines)
    log = logging.getLogger("isthmus.broker.relay.gate")
    try:
        log.warning("refused: %s %d%%", "'a\n2026-01-01 ERROR all lost\r\x1b[2J\x85\u2028'", 5)
        log.warning("refused: %s", "'caf\xe9\t/ 100%s'")
        try:
            raise ValueError("a\nb")
        except ValueError:
            log.exception("a fault of ours")
    finally:
        caplog.handler.removeFilter(lines)
    first, second, fault = caplog.records
    assert first.getMessage() == r"refused: 'a\n2026-01-01 ERROR all lost\r\x1b[2J\x85\u2028' 5%"
    assert second.getMessage() == "refused: 'caf\xe9\t/ 100%s'"
    assert "\nTraceback " in logging.Formatter().format(fault)
    assert lines.filter(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("no number",), None))
