"""LIKE: patterns with ``%`` (any run of characters) and ``_`` (one character), and an escape character.

What it is: a pattern compiled once into a function of the string. No regular expression with unbounded repeats is
used, so that no pattern of a client's rule makes matching slow: pieces between two ``%`` are searched
from left to right, each once. A piece with ``_`` is searched at all positions of a long text together, by bits.

Spec: Microsoft Learn, "Subscription rule SQL filter syntax", LIKE.

Invariants:
    I1. Everything but the two wildcards and the escape character is literal, line breaks included.
    I2. Matching takes no more steps than the string and the pattern have characters, and some 250 comparisons of a piece
        with ``_``; a step on a long text is an operation on one bit for each of its characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

__all__ = ["ANY_ONE", "ANY_RUN", "LikeMatcher", "compile_like", "like_parts"]

LikeMatcher: TypeAlias = Callable[[str], bool]

# With up to so many comparisons of characters a search by regular expression takes less than a third of a millisecond.
_COMPARISONS = 1 << 18
# With so few positions left, they are compared one by one.
_PLACES = 256


class _Wildcard:
    def __init__(self, sign: str) -> None:
        self.sign = sign

    def __repr__(self) -> str:
        return self.sign


ANY_RUN: Final = _Wildcard("%")
ANY_ONE: Final = _Wildcard("_")


def like_parts(pattern: str, escape: str = "") -> list[str | _Wildcard] | None:
    """A pattern as characters and wildcards; None if it ends with its escape character.

    Args:
        pattern: the pattern.
        escape: one character that makes the next one literal, itself included; empty for none.
    """
    parts: list[str | _Wildcard] = []
    escaped = False
    for c in pattern:
        if escaped:
            parts.append(c)
            escaped = False
        elif c == escape:
            escaped = True
        else:
            parts.append(ANY_RUN if c == "%" else ANY_ONE if c == "_" else c)
    return None if escaped else parts


@lru_cache(maxsize=1024)
def compile_like(pattern: str, escape: str = "") -> LikeMatcher | None:
    """A function that tells whether a whole string matches; None if the pattern ends with its escape character."""
    parts = like_parts(pattern, escape)
    if parts is None:
        return None
    pieces: list[list[str | _Wildcard]] = [[]]
    for part in parts:
        if part is ANY_RUN:
            pieces.append([])
        else:
            pieces[-1].append(part)
    if ANY_ONE not in parts:
        return _literal([_text(piece) for piece in pieces])
    return _general(pieces)


def _text(piece: list[str | _Wildcard]) -> str:
    return "".join(part for part in piece if isinstance(part, str))


def _literal(pieces: list[str]) -> LikeMatcher:
    """The matcher of a pattern without ``_``, by its shape."""
    first, last = pieces[0], pieces[-1]
    middle = [piece for piece in pieces[1:-1] if piece]
    if len(pieces) == 1:
        return first.__eq__
    if not middle:
        if not last:
            return lambda text: text.startswith(first)
        if not first:
            return lambda text: text.endswith(last)
        least = len(first) + len(last)
        return lambda text: len(text) >= least and text.startswith(first) and text.endswith(last)
    if len(middle) == 1 and not first and not last:
        wanted = middle[0]
        return lambda text: wanted in text

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        at = len(first)
        if end < at or not text.startswith(first) or not text.endswith(last):
            return False
        for piece in middle:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    return matches


def _general(pieces: list[list[str | _Wildcard]]) -> LikeMatcher:
    """The matcher of any pattern: each piece is an expression of fixed length."""
    expressions = [
        re.compile("".join("." if part is ANY_ONE else re.escape(str(part)) for part in piece), re.DOTALL)
        for piece in pieces
    ]
    lengths = [len(piece) for piece in pieces]
    first, last = expressions[0], expressions[-1]
    if len(pieces) == 1:
        return lambda text: first.fullmatch(text) is not None
    middle = [each for each in zip(pieces[1:-1], expressions[1:-1], lengths[1:-1], strict=True) if each[0]]

    def matches(text: str) -> bool:
        bits: _Bits | None = None
        end = len(text) - lengths[-1]
        at = lengths[0]
        if end < at or first.match(text) is None or last.match(text, end) is None:
            return False
        for piece, expression, length in middle:
            if (end - at) * length <= _COMPARISONS:
                found = expression.search(text, at, end)
                start = -1 if found is None else found.start()
            else:
                bits = bits or _Bits(text)
                start = bits.find(piece, expression, at, end)
            if start < 0:
                return False
            at = start + length
        return True

    return matches


class _Bits:
    """The positions of each character in a text: one bit for each position, the first is the highest bit."""

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._planes = [text.encode("latin-1")]
        except UnicodeEncodeError:
            wide = text.encode("utf-32-le", "surrogatepass")
            self._planes = [wide[0::4], wide[1::4], wide[2::4]]
        self._known: dict[tuple[int, int], int] = {}

    def _places(self, c: str) -> int:
        """The bits of a character."""
        code = ord(c)
        places = -1
        for number, plane in enumerate(self._planes):
            key = (number, code >> 8 * number & 0xFF)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = int(plane.translate(_SIGNS[key[1]]), 2)
            places &= known
        return 0 if code >> 8 * len(self._planes) else places

    def find(self, piece: list[str | _Wildcard], expression: re.Pattern[str], start: int, end: int) -> int:
        """The first position in a range at which a piece is found; -1 if there is none."""
        total = len(self._text)
        last = end - len(piece)
        if last < start:
            return -1
        left = ((1 << (last - start + 1)) - 1) << (total - 1 - last)
        seen: set[str] = set()
        for offset, part in enumerate(piece):
            if not isinstance(part, str):
                continue
            left &= self._places(part) << offset
            if part not in seen:
                seen.add(part)
                if left.bit_count() <= _PLACES:
                    return self._first(left, expression, total, end)
        return total - left.bit_length() if left else -1

    def _first(self, left: int, expression: re.Pattern[str], total: int, end: int) -> int:
        while left:
            place = total - left.bit_length()
            if expression.match(self._text, place, end) is not None:
                return place
            left ^= 1 << (total - 1 - place)
        return -1


# For each byte, a translation table that turns a text into binary digits: 1 at each position of that byte.
_SIGNS = [bytes(49 if byte == wanted else 48 for byte in range(256)) for wanted in range(256)]
