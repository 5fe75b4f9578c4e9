from __future__ import annotations

import gzip
import zlib
from functools import partial

import pytest

from isthmus.connectors.listen.coding import MOST_MEMBERS, CodingError, decoded

LIMIT = 1000
zipped = partial(gzip.compress, mtime=0)  # workers collect the same tests


def raw(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("", b"body"),
        ("identity", b"body"),
        ("gzip", zipped(b"body")),
        ("X-GZIP", zipped(b"bo") + zipped(b"dy")),
        ("deflate", zlib.compress(b"body")),
        (" deflate ", raw(b"body")),
    ],
    ids=["none", "identity", "gzip", "two members", "deflate", "deflate without a header"],
)
def test_a_body_is_what_was_compressed(coding: str, sent: bytes) -> None:
    assert decoded(coding, sent, LIMIT) == b"body"


@pytest.mark.parametrize(
    ("coding", "sent", "status", "text"),
    [
        ("br", b"body", 415, "gzip, deflate"),
        ("gzip", b"body", 400, "is not gzip"),
        ("gzip", zipped(b"body")[:-4], 400, "cut off"),
        ("gzip", zipped(b"x" * (LIMIT + 1)), 413, "1000 bytes"),
        ("gzip", zipped(b"x" * LIMIT) + zipped(b"y"), 413, "1000 bytes"),
    ],
    ids=["another coding", "no gzip", "cut off", "too large", "too large with the second member"],
)
def test_i1_what_cannot_be_read_is_refused_with_the_reason(coding: str, sent: bytes, status: int, text: str) -> None:
    with pytest.raises(CodingError, match=text) as raised:
        decoded(coding, sent, LIMIT)
    assert raised.value.status == status


def test_i2_a_body_of_many_empty_members_is_refused() -> None:
    empty = zipped(b"")
    assert decoded("gzip", empty * MOST_MEMBERS, LIMIT) == b""
    with pytest.raises(CodingError, match="members") as raised:
        decoded("gzip", empty * (MOST_MEMBERS + 1), LIMIT)
    assert raised.value.status == 413
