from __future__ import annotations

import gzip
import zlib

import pytest

from isthmus.connectors.listen.coding import MOST_MEMBERS, CodingError, decoded

LIMIT = 1000


def raw(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("", b"body"),
        ("identity", b"body"),
        ("gzip", gzip.compress(b"body")),
        ("X-GZIP", gzip.compress(b"bo") + gzip.compress(b"dy")),
        ("deflate", zlib.compress(b"body")),
        (" deflate ", raw(b"body")),
    ],
)
def test_a_body_is_what_was_compressed(coding: str, sent: bytes) -> None:
    assert decoded(coding, sent, LIMIT) == b"body"


@pytest.mark.parametrize(
    ("coding", "sent", "status", "text"),
    [
        ("br", b"body", 415, "gzip, deflate"),
        ("gzip", b"body", 400, "is not gzip"),
        ("gzip", gzip.compress(b"body")[:-4], 400, "cut off"),
        ("gzip", gzip.compress(b"x" * (LIMIT + 1)), 413, "1000 bytes"),
        ("gzip", gzip.compress(b"x" * LIMIT) + gzip.compress(b"y"), 413, "1000 bytes"),
    ],
)
def test_i1_what_cannot_be_read_is_refused_with_the_reason(coding: str, sent: bytes, status: int, text: str) -> None:
    with pytest.raises(CodingError, match=text) as raised:
        decoded(coding, sent, LIMIT)
    assert raised.value.status == status


def test_i2_a_body_of_many_empty_members_is_refused() -> None:
    empty = gzip.compress(b"")
    assert decoded("gzip", empty * MOST_MEMBERS, LIMIT) == b""
    with pytest.raises(CodingError, match="members") as raised:
        decoded("gzip", empty * (MOST_MEMBERS + 1), LIMIT)
    assert raised.value.status == 413
