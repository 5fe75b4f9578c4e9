"""Text to tokens.

What it is: the lexical part of the language: numbers, strings, names in three spellings, parameters, symbols, each
with its position. What it is not: grammar. A faulty token is reported once and passed on as BAD, so that the parser
continues without a second fault for it.

Spec: docs/explanation/protocol.md, Filter language.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from isthmus.errors import Fault
from isthmus.rules.value import LONG_MAX

__all__ = ["KEYWORDS", "STATEMENT_KEYWORDS", "Token", "TokenKind", "is_plain_name", "tokenise"]

KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IS", "NULL", "IN", "LIKE", "ESCAPE", "EXISTS", "TRUE", "FALSE"})
STATEMENT_KEYWORDS: Final = frozenset({"SET", "REMOVE"})

_SYMBOLS: Final = ("<>", "!=", ">=", "<=", "=", ">", "<", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";")
_FOREIGN: Final = {"==": "=", "&&": "AND", "||": "OR", "!": "NOT"}


class TokenKind(enum.Enum):
    """What a token is."""

    NAME = "name"
    KEYWORD = "keyword"
    INTEGER = "integer"
    DOUBLE = "double"
    STRING = "string"
    PARAMETER = "parameter"
    SYMBOL = "symbol"
    BAD = "bad"
    END = "end"


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        kind: what it is.
        text: symbol; keyword in upper case; name, string or parameter without its delimiters; digits of a number.
        line: from 1.
        column: from 1, in characters.
        value: number of an INTEGER (which may be one over the largest long: see the parser) or a DOUBLE.
        delimited: whether a NAME was in brackets or double quotes, so that it is never a keyword.
        glued: whether it follows the token before it without white space.
    """

    kind: TokenKind
    text: str
    line: int
    column: int
    value: int | float = 0
    delimited: bool = False
    glued: bool = False

    def shown(self) -> str:
        """The token as an error text quotes it."""
        if self.kind is TokenKind.END:
            return "the end"
        if self.kind is TokenKind.STRING:
            return f"'{self.text}'"
        if self.kind is TokenKind.PARAMETER:
            return f"@{self.text}"
        return f"[{self.text}]" if self.delimited else f"'{self.text}'"


def is_plain_name(name: str) -> bool:
    """Whether a name can be written without delimiters, in filters and in actions."""
    return (
        bool(name)
        and name[0].isalpha()
        and all(_continues_name(c) for c in name)
        and name.upper() not in KEYWORDS | STATEMENT_KEYWORDS
    )


def tokenise(text: str, *, statements: bool = False) -> tuple[list[Token], list[Fault]]:
    """Cuts an expression into tokens; the last is always END.

    Args:
        text: the expression.
        statements: whether SET and REMOVE are keywords, as they are in actions.

    Returns:
        The tokens, and the faults found on the way.
    """
    scanner = _Scanner(text, KEYWORDS | STATEMENT_KEYWORDS if statements else KEYWORDS)
    scanner.run()
    return scanner.tokens, scanner.faults


def _continues_name(c: str) -> bool:
    return c == "_" or c.isalpha() or c.isdecimal()


class _Scanner:
    def __init__(self, text: str, keywords: frozenset[str]) -> None:
        self.text = text
        self.keywords = keywords
        self.tokens: list[Token] = []
        self.faults: list[Fault] = []
        self.at = 0
        self.line = 1
        self.line_start = 0
        self.end_of_last = 0

    def run(self) -> None:
        text = self.text
        while self.at < len(text):
            c = text[self.at]
            if c == "\n":
                self.at += 1
                self.line += 1
                self.line_start = self.at
            elif c.isspace():
                self.at += 1
            elif c == "'":
                self._quoted("'", TokenKind.STRING, "string")
            elif c == '"':
                self._quoted('"', TokenKind.NAME, "name")
            elif c == "[":
                self._quoted("]", TokenKind.NAME, "name")
            elif c.isalpha():
                self._name()
            elif c.isdecimal():
                self._number()
            elif c == "@":
                self._parameter()
            else:
                self._symbol(c)
        self._add(TokenKind.END, "", self.at)

    def _add(self, kind: TokenKind, token_text: str, end: int, *, value: float = 0, delimited: bool = False) -> None:
        glued = self.at == self.end_of_last and self.at > 0
        column = self.at - self.line_start + 1
        self.tokens.append(Token(kind, token_text, self.line, column, value, delimited, glued))
        newlines = self.text.count("\n", self.at, end)
        if newlines:
            self.line += newlines
            self.line_start = self.text.rindex("\n", self.at, end) + 1
        self.at = self.end_of_last = end

    def _bad(self, message: str, hint: str, end: int) -> None:
        self.faults.append(Fault(message, hint, line=self.line, column=self.at - self.line_start + 1))
        self._add(TokenKind.BAD, self.text[self.at : end], end)

    def _quoted(self, closing: str, kind: TokenKind, what: str) -> None:
        parts = []
        start = self.at + 1
        while True:
            end = self.text.find(closing, start)
            if end < 0:
                hint = f"close it with {closing}; {closing}{closing} stands for one {closing} within it"
                self._bad(f"the {what} that begins here has no end", hint, len(self.text))
                return
            parts.append(self.text[start:end])
            if not self.text.startswith(closing, end + 1):
                break
            parts.append(closing)
            start = end + 2
        content = "".join(parts)
        if kind is TokenKind.NAME and not content:
            hint = "put the property's name between the delimiters"
            self._bad("a name is empty", hint + ("; strings take single quotes" if closing == '"' else ""), end + 1)
            return
        self._add(kind, content, end + 1, delimited=kind is TokenKind.NAME)

    def _word_end(self, start: int) -> int:
        end = start
        while end < len(self.text) and _continues_name(self.text[end]):
            end += 1
        return end

    def _name(self) -> None:
        end = self._word_end(self.at)
        word = self.text[self.at : end]
        if word.upper() in self.keywords:
            self._add(TokenKind.KEYWORD, word.upper(), end)
        else:
            self._add(TokenKind.NAME, word, end)

    def _digits_end(self, start: int) -> int:
        end = start
        while end < len(self.text) and self.text[end].isdecimal():
            end += 1
        return end

    def _number(self) -> None:
        text = self.text
        end = self._digits_end(self.at)
        double = False
        if text.startswith(".", end):
            double = True
            end = self._digits_end(end + 1)
        if text[end : end + 1] in ("e", "E"):
            digits = end + 2 if text[end + 1 : end + 2] in ("+", "-") else end + 1
            exponent_end = self._digits_end(digits)
            if exponent_end == digits:
                hint = f"write digits after the exponent, e.g. {text[self.at : end]}E5"
                self._bad("the exponent has no digits", hint, self._word_end(digits))
                return
            double = True
            end = exponent_end
        if end < len(text) and _continues_name(text[end]):
            end = self._word_end(end)
            word = text[self.at : end]
            self._bad(f"'{word}' is neither a number nor a name", f"write [{word}] if a property has this name", end)
            return
        digits_text = text[self.at : end]
        value: int | float = float(digits_text) if double else int(digits_text)
        # -9223372036854775808 is the smallest long; the parser refuses its digits without the sign.
        if value > LONG_MAX + 1 if isinstance(value, int) else math.isinf(value):
            what = "double" if double else "long"
            hint = "" if double else f"longs end at {LONG_MAX}; write {digits_text}.0 for a double"
            self._bad(f"{digits_text} does not fit a {what}", hint, end)
            return
        self._add(TokenKind.DOUBLE if double else TokenKind.INTEGER, digits_text, end, value=value)

    def _parameter(self) -> None:
        start = self.at + 1
        end = self._word_end(start)
        if end == start or not self.text[start].isalpha():
            self._bad("'@' begins a parameter, which has no name here", "write @name; it begins with a letter", end)
            return
        self._add(TokenKind.PARAMETER, self.text[start:end], end)

    def _symbol(self, c: str) -> None:
        text = self.text
        for foreign, ours in _FOREIGN.items():
            if text.startswith(foreign, self.at) and not text.startswith("!=", self.at):
                self._bad(f"'{foreign}' is no operator of this language", f"write {ours}", self.at + len(foreign))
                return
        for symbol in _SYMBOLS:
            if text.startswith(symbol, self.at):
                self._add(TokenKind.SYMBOL, "<>" if symbol == "!=" else symbol, self.at + len(symbol))
                return
        hint = ""
        if c == "_":
            word = text[self.at : self._word_end(self.at)]
            self._bad("a name begins with a letter", f"write [{word}]", self.at + len(word))
            return
        if c in "‘’“”`":
            hint = "strings take straight single quotes: 'text'"
        self._bad(f"'{c}' has no meaning here", hint, self.at + 1)
