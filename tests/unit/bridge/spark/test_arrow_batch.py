"""How large a flush row is, and which sessions are refused."""

from __future__ import annotations

import pytest

from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_BYTES, ARROW_BATCH_SETTING, padding_bytes
from isthmus.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("written", "limit"),
    [("131072", 131_072), ("131072b", 131_072), ("128k", 131_072), ("1MB", 1 << 20), (" 4m ", 4 << 20)],
)
def test_a_flush_row_is_over_the_limit_of_a_batch(written: str, limit: int) -> None:
    assert limit < padding_bytes({ARROW_BATCH_SETTING: written}.get, "65536") < limit + 4096


def test_a_flush_row_is_over_what_java_writes_at_once() -> None:
    settings = {ARROW_BATCH_SETTING: "1000"}
    assert padding_bytes(settings.get, "32768") > 32_768
    assert padding_bytes(settings.get, None) > 65_536


def test_a_session_that_says_nothing_is_refused_with_what_to_set_i1() -> None:
    with pytest.raises(InvalidArgumentError, match="is not set, and Spark's default is 64m: ") as caught:
        padding_bytes(dict[str, str]().get, "65536")
    assert ARROW_BATCH_SETTING in str(caught.value)
    assert f"set it to {ARROW_BATCH_BYTES}" in str(caught.value)


@pytest.mark.parametrize("written", ["4194305", "64m", "1g", "2t", "1p"])
def test_a_session_that_gathers_too_much_is_refused_i1(written: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"is {written}: Spark would hold messages back"):
        padding_bytes({ARROW_BATCH_SETTING: written}.get, "65536")


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"is '1\.5m'; write a number of bytes, or such as 128k"):
        padding_bytes({ARROW_BATCH_SETTING: "1.5m"}.get, None)
