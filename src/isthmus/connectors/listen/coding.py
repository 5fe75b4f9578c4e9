"""The decoding of compressed request bodies.

What it is: the content codings that a listener accepts; pure. What it is not: a limit on received bytes (`listener`).
Specification: RFC 9110, 8.4 (Content-Encoding); RFC 1950 to 1952.

Invariants:
    I1. Decoding produces no more bytes than the limit, and one.
    I2. A body has at most `MOST_MEMBERS` members: the bytes after a member are copied, so that many empty members would take quadratic
        time, before the sender is authenticated.
"""

from __future__ import annotations

import zlib

__all__ = ["CODINGS", "MOST_MEMBERS", "CodingError", "decoded"]

CODINGS = "gzip, deflate"
# A gzip body may have several (RFC 1952, 2.2); parallel compressors write one for each part.
MOST_MEMBERS = 100
_GZIP_BITS = 16 + zlib.MAX_WBITS
# The compression method of zlib's header; some senders omit it with deflate.
_ZLIB_METHOD = 8


class CodingError(ValueError):
    """A body cannot be read; `status` is that of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def decoded(coding: str, body: bytes, limit: int) -> bytes:
    """The body without its coding; the same object where it has none.

    Args:
        coding: the header Content-Encoding; empty: none.
        body: as it was sent.
        limit: its maximum size in bytes.

    Raises:
        CodingError: the coding is unknown, the body does not match it, or it becomes too large.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise CodingError(415, f"of content codings, {CODINGS} are accepted")
    made = bytearray()
    rest, members = body, 0
    while rest:
        members += 1
        if members > MOST_MEMBERS:
            raise CodingError(413, f"{MOST_MEMBERS} members of {name} are accepted")
        stream = zlib.decompressobj(_GZIP_BITS if name != "deflate" else _bits(rest))
        try:
            made += stream.decompress(rest, limit + 1 - len(made))
        except zlib.error:
            raise CodingError(400, f"the body is not {name}") from None
        if len(made) > limit:
            raise CodingError(413, f"{limit} bytes are accepted")
        if not stream.eof:
            raise CodingError(400, f"the body is cut off: its {name} has no end")
        rest = stream.unused_data
    return bytes(made)


def _bits(data: bytes) -> int:
    return zlib.MAX_WBITS if data[0] & 0xF == _ZLIB_METHOD else -zlib.MAX_WBITS
