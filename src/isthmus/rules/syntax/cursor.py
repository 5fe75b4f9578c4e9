"""A position in the tokens of an expression, and the faults found up to it.

What it is: the primitives of a parser that continues after a fault: peek, accept, expect, note a fault, skip. What it is
not: grammar (see `parser` and `statement`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from isthmus.errors import Fault
from isthmus.rules.error import RuleSyntaxError
from isthmus.rules.syntax.token import Token, TokenKind, tokenise

__all__ = ["MAX_CHARACTERS", "MAX_NESTING", "BrokenError", "Cursor"]

MAX_CHARACTERS: Final = 1024
# A bracket costs eight Python frames; 40 stay far below the interpreter's default limit of 1,000.
MAX_NESTING: Final = 40


class BrokenError(Exception):
    """A fault has been noted; the nearest AND, OR or statement continues after it. Never leaves the parser."""


class Cursor:
    """Reads tokens.

    Args:
        text: the expression.
        parameters: names, in lower case and without ``@``, that have values.
        statements: whether the text is an action, in which SET and REMOVE are keywords.
    """

    def __init__(self, text: str, parameters: Collection[str], *, statements: bool) -> None:
        self.text = text
        self.parameters = parameters
        self.statements = statements
        if len(text) > MAX_CHARACTERS:
            what = "an action" if statements else "a filter"
            line = text.count("\n", 0, MAX_CHARACTERS) + 1
            column = MAX_CHARACTERS - (text.rfind("\n", 0, MAX_CHARACTERS) + 1) + 1
            message = f"{what} has at most {MAX_CHARACTERS} characters; this one has {len(text)}"
            raise RuleSyntaxError([Fault(message, "split it into several rules", line=line, column=column)], text)
        self.tokens, self.faults = tokenise(text, statements=statements)
        self.index = 0
        self.nesting = 0

    def finish(self) -> None:
        if self.faults:
            # Of several faults at one position the first is the cause.
            first = {(fault.line, fault.column): fault for fault in reversed(self.faults)}
            raise RuleSyntaxError(first.values(), self.text)

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def ended(self) -> bool:
        return self.index == len(self.tokens) - 1

    def advance(self) -> Token:
        token = self.token
        if not self.ended():
            self.index += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self.token
        return token.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL) and token.text in texts

    def accept(self, *texts: str) -> Token | None:
        return self.advance() if self.at(*texts) else None

    def note(self, token: Token, message: str, hint: str = "") -> None:
        if token.kind is not TokenKind.BAD:
            self.faults.append(Fault(message, hint, line=token.line, column=token.column))

    def failure(self, token: Token, message: str, hint: str = "") -> BrokenError:
        self.note(token, message, hint)
        return BrokenError()

    def expect(self, symbol: str, after: str, opened: Token | None = None) -> Token:
        token = self.accept(symbol)
        if token is not None:
            return token
        hint = f"it closes the '(' at line {opened.line}, column {opened.column}" if opened is not None else ""
        raise self.failure(self.token, f"'{symbol}' is expected {after}, not {self.token.shown()}", hint)

    def skip(self, start: int) -> None:
        """Goes to where reading can continue: to AND, OR or ``)`` outside the brackets opened since token `start`."""
        depth = sum(_depth(token) for token in self.tokens[start : self.index])
        while not self.ended():
            if self.statements and self.at("SET", "REMOVE", ";"):
                return
            if depth <= 0 and self.at("AND", "OR", ")"):
                return
            depth += _depth(self.advance())

    def enter(self, token: Token) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.failure(token, f"brackets and signs nest more than {MAX_NESTING} deep here", "write it flatter")


def _depth(token: Token) -> int:
    if token.kind is not TokenKind.SYMBOL:
        return 0
    return 1 if token.text == "(" else -1 if token.text == ")" else 0
