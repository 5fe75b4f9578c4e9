"""What is no HTTP leaves one line, faults of ours their traceback."""

import logging

import pytest
from aiohttp.http_exceptions import BadStatusLine

from isthmus.broker.net.http_log import http_log


@pytest.mark.parametrize("secret", ["Authorization: SharedAccessSignature sr=x&sig=y"])
def test_bytes_that_are_no_http_leave_one_line_without_them_i1(caplog, secret):
    try:
        raise BadStatusLine(secret)
    except BadStatusLine as error:
        http_log().error("Error handling request from %s", "127.0.0.1", exc_info=error)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert record.getMessage() == "http refused: peer=127.0.0.1 status=400 reason=BadStatusLine"
    assert secret not in caplog.text


def test_a_fault_of_ours_keeps_its_traceback_i2(caplog):
    try:
        raise KeyError("x")
    except KeyError as error:
        http_log().error("Error handling request from %s", "127.0.0.1", exc_info=error)
    assert "Traceback" in caplog.text
