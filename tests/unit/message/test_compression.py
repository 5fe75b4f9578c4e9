"""Deflated envelopes: the same comes out, and never more than is allowed."""

from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InvalidArgumentError
from isthmus.message.compression import MOST_TIMES, compress, expand

TEXT = b'{"carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "IAH"}' * 40


@given(st.one_of(st.binary(max_size=3_000), st.text(max_size=2_000).map(lambda text: text.encode() * 3)))
def test_what_is_expanded_is_what_was_compressed_i1(data: bytes) -> None:
    found = compress(data)
    assert found is None or (len(found) < len(data) and expand(found, len(data)) == data)


def test_text_becomes_less_and_noise_stays_as_it_is() -> None:
    found = compress(TEXT)
    assert found is not None
    assert len(found) < len(TEXT) / 3
    assert compress(os.urandom(10_000)) is None
    assert compress(b"short" * 10) is None


def test_what_would_become_too_much_is_neither_made_nor_taken_i2() -> None:
    zeros = bytes(100_000)
    assert compress(zeros) is None
    bomb = zlib.compress(zeros)
    with pytest.raises(InvalidArgumentError, match=f"more than {MOST_TIMES * len(bomb)} bytes"):
        expand(bomb, 1 << 20)
    found = compress(TEXT)
    assert found is not None
    with pytest.raises(InvalidArgumentError, match=f"more than {len(TEXT) - 1} bytes"):
        expand(found, len(TEXT) - 1)


def test_what_is_damaged_is_refused() -> None:
    found = compress(TEXT)
    assert found is not None
    for damaged in (found[:-1], found + b"x", b"", b"no" + found):
        with pytest.raises(InvalidArgumentError, match="deflated envelope"):
            expand(damaged, 1 << 20)
