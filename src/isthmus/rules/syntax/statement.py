"""Statements of actions: SET and REMOVE.

Spec: docs/explanation/protocol.md, Filter language (grammar) and Rules (32 statements per action).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from isthmus.rules.syntax.cursor import BrokenError
from isthmus.rules.syntax.parser import Parser
from isthmus.rules.syntax.token import KEYWORDS, STATEMENT_KEYWORDS, Token, TokenKind
from isthmus.rules.syntax.tree import Remove, Set, Statement
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import COMPARISONS

__all__ = ["MAX_STATEMENTS", "parse_statements"]

MAX_STATEMENTS: Final = 32


def parse_statements(text: str, parameters: Collection[str] = ()) -> tuple[Statement, ...]:
    """Parses an action; see `isthmus.rules.syntax.parser.parse_predicate`."""
    parser = _StatementParser(text, parameters, statements=True)
    statements = parser.action()
    parser.finish()
    return statements


class _StatementParser(Parser):
    def action(self) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        count = 0
        if self.ended():
            self.note(self.token, "the action is empty", "write SET name = value or REMOVE name")
        while not self.ended():
            count += 1
            if count == MAX_STATEMENTS + 1:
                self.note(self.token, f"an action has at most {MAX_STATEMENTS} statements")
            try:
                statements.append(self.statement())
            except BrokenError:
                self.nesting = 0
                self.skip_statement()
            self.accept(";")
        return tuple(statements)

    def skip_statement(self) -> None:
        while not self.ended() and not self.at("SET", "REMOVE", ";"):
            self.advance()

    def statement(self) -> Statement:
        token = self.token
        if not self.accept("SET", "REMOVE"):
            self.advance()
            raise self.failure(token, f"SET or REMOVE is expected here, not {token.shown()}", _statement_hint(token))
        name = self.token
        if name.kind is not TokenKind.NAME:
            hint = f"write [{name.text}]" if self.accept(*KEYWORDS, *STATEMENT_KEYWORDS) else ""
            raise self.failure(name, f"{token.text} takes a property's name, not {name.shown()}", hint)
        target = self.property()
        system = SYSTEM_PROPERTIES.get(target.name) if target.scope == "sys" else None
        if system is not None and not system.writable:
            self.note(name, f"sys.{target.name} belongs to the broker: an action cannot change it")
        if token.text == "REMOVE":
            return Remove(target)
        self.expect("=", "after the property of SET")
        start = self.token
        value = self.value(start, self.sum())
        following = self.token
        if not self.ended() and not self.at("SET", "REMOVE", ";"):
            raise self.failure(
                following, f"{following.shown()} cannot follow the value of SET", _assignment_hint(following)
            )
        return Set(target, value)


def _statement_hint(token: Token) -> str:
    return "separate statements by ';' or white space, not by ','" if token.text == "," else "e.g. SET name = 1"


def _assignment_hint(token: Token) -> str:
    if token.text in (*COMPARISONS, "AND", "OR", "NOT", "IN", "LIKE", "IS"):
        return "SET takes a value, not a condition"
    return "separate statements by ';' or white space"
