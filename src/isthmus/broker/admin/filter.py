"""The `$filter` of a list: which entities it contains.

What it is: the expression parsed once and evaluated for each entity. What it is not: the rules language of messages.
Spec: the OData subset that the service's clients document for lists of queues, topics and subscriptions: comparisons
(`eq ne gt ge lt le`) of `path`, `messageCount`, `createdAt`, `updatedAt`, `accessedAt`; `startswith(path, 'text')`, with or
without `eq true`; `and`, `or`, `not`, parentheses. Names are compared without case, as paths are everywhere.

Invariants:
    I1. Any text is parsed, or refused with its fault; nesting and length are bounded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isthmus.errors import InvalidArgumentError

__all__ = ["Listed", "parse_filter"]

_LIMIT_CHARACTERS = 2048
_LIMIT_DEPTH = 32
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d{1,18})(?![\w.])|(?P<word>[A-Za-z]+)|(?P<mark>[(),]))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}


@dataclass(frozen=True, slots=True)
class Listed:
    """The fields of an entity that a filter may compare.

    Attributes:
        path: queue's or topic's path; a subscription's name.
        accessed_at_ms: wall time; 0 is never.
    """

    path: str
    message_count: int = 0
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0


Predicate = Callable[[Listed], bool]
_FIELDS: dict[str, Callable[[Listed], Any]] = {
    "path": lambda listed: listed.path.lower(),
    "messagecount": lambda listed: listed.message_count,
    "createdat": lambda listed: listed.created_at_ms,
    "updatedat": lambda listed: listed.updated_at_ms,
    "accessedat": lambda listed: listed.accessed_at_ms,
}


def parse_filter(text: str) -> Predicate:
    """The condition of a filter.

    Raises:
        InvalidArgumentError: it does not parse.
    """
    if len(text) > _LIMIT_CHARACTERS:
        raise InvalidArgumentError(f"The $filter has {len(text)} characters; {_LIMIT_CHARACTERS} are allowed.")
    parser = _Parser(text)
    predicate = parser.any_of(0)
    parser.end()
    return predicate


class _Parser:
    """Recursive descent over the tokens; `or` binds less than `and`, and that less than `not`."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise InvalidArgumentError(f"The $filter is not understood from '{text[at : at + 32]}' on.")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
            at = found.end()
        self._at = 0

    def any_of(self, depth: int) -> Predicate:
        parts = [self._all_of(depth)]
        while self._take_word("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else lambda listed: any(part(listed) for part in parts)

    def _all_of(self, depth: int) -> Predicate:
        parts = [self._one(depth)]
        while self._take_word("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda listed: all(part(listed) for part in parts)

    def _one(self, depth: int) -> Predicate:
        if depth > _LIMIT_DEPTH:
            raise InvalidArgumentError("The $filter is nested too deeply.")
        if self._take_word("not"):
            inner = self._one(depth + 1)
            return lambda listed: not inner(listed)
        if self._take("mark", "("):
            inner = self.any_of(depth + 1)
            self._expect("mark", ")")
            return inner
        if self._take_word("startswith"):
            return self._starts_with()
        return self._comparison()

    def _starts_with(self) -> Predicate:
        self._expect("mark", "(")
        self._expect("word", "path")
        self._expect("mark", ",")
        start = self._text().lower()
        self._expect("mark", ")")
        wanted = True
        if self._take_word("eq"):
            wanted = not self._take_word("false")
            if wanted:
                self._expect("word", "true")
        return lambda listed: listed.path.lower().startswith(start) is wanted

    def _comparison(self) -> Predicate:
        kind, name = self._next()
        field = _FIELDS.get(name.lower()) if kind == "word" else None
        if field is None:
            raise InvalidArgumentError(f"The $filter asks for '{name[:32]}'; known are {', '.join(_FIELDS)}.")
        kind, sign = self._next()
        compare = _COMPARISONS.get(sign.lower()) if kind == "word" else None
        if compare is None:
            raise InvalidArgumentError(f"The $filter compares by '{sign[:32]}'; known are {', '.join(_COMPARISONS)}.")
        value = self._value(name.lower())
        return lambda listed: compare(field(listed), value)

    def _value(self, name: str) -> int | str:
        if name == "path":
            return self._text().lower()
        kind, value = self._next()
        if name == "messagecount" and kind == "number":
            return int(value)
        if name != "messagecount" and kind == "text":
            try:
                moment = datetime.fromisoformat(value[1:-1])
            except ValueError:
                moment = None
            if moment is not None:
                zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
                return int(zoned.timestamp() * 1000)
        what = "a whole number" if name == "messagecount" else "a time such as '2026-01-31T12:00:00Z'"
        raise InvalidArgumentError(f"The $filter compares {name} with '{value[:32]}'; it wants {what}.")

    def _text(self) -> str:
        kind, value = self._next()
        if kind != "text":
            raise InvalidArgumentError(f"The $filter wants a text in single quotes, not '{value[:32]}'.")
        return value[1:-1].replace("''", "'")

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise InvalidArgumentError("The $filter ends too early.")
        self._at += 1
        return self._tokens[self._at - 1]

    def _take(self, kind: str, value: str) -> bool:
        if self._at < len(self._tokens):
            found = self._tokens[self._at]
            if found[0] == kind and found[1].lower() == value:
                self._at += 1
                return True
        return False

    def _take_word(self, word: str) -> bool:
        return self._take("word", word)

    def _expect(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            found = self._tokens[self._at][1] if self._at < len(self._tokens) else "its end"
            raise InvalidArgumentError(f"The $filter wants '{value}' before '{found[:32]}'.")

    def end(self) -> None:
        """Refuse what is left over."""
        if self._at < len(self._tokens):
            raise InvalidArgumentError(f"The $filter goes on after its end with '{self._tokens[self._at][1][:32]}'.")
