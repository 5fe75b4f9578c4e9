"""LIKE: patterns with ``%`` (any run of characters) and ``_`` (one character), and an escape character.

What it is: a pattern compiled once into a function of the string. No regular expression with unbounded repeats is
used, so that no pattern that a client may write into a rule makes matching slow: pieces between two ``%`` are looked
for from left to right, each once.

Spec: SERVICE-BUS.md W15.

Invariants:
    I1. Everything but the two wildcards and the escape character is literal, line breaks included.
    I2. Matching costs at most the length of the string times the longest piece with ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

__all__ = ["ANY_ONE", "ANY_RUN", "LikeMatcher", "compile_like", "like_parts"]

LikeMatcher: TypeAlias = Callable[[str], bool]


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
    middle = list(zip(expressions[1:-1], lengths[1:-1], strict=True))

    def matches(text: str) -> bool:
        end = len(text) - lengths[-1]
        at = lengths[0]
        if end < at or first.match(text) is None or last.match(text, end) is None:
            return False
        for expression, length in middle:
            found = expression.search(text, at, end)
            if found is None:
                return False
            at = found.start() + length
        return True

    return matches
