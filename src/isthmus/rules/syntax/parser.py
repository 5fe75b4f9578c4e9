"""Tokens to a tree.

What it is: a recursive-descent parser of filters and actions that continues after a fault, so that one attempt names
them all. It knows the language's static rules too: system names, parameters with values, what LIKE takes, limits.

One rule reads conditions and values alike, since ``(`` can begin either; each operator then checks which it got.

Spec: docs/explanation/protocol.md, Filter language (grammar) and Rules (limits: 1,024 characters, 32 statements per action).

Invariants:
    I1. Any text gives a tree or RuleSyntaxError, never another exception.
    I2. Every fault has the line and column of the token that it is about.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from isthmus.rules.evaluation.like import compile_like
from isthmus.rules.syntax.cursor import BrokenError, Cursor
from isthmus.rules.syntax.token import KEYWORDS, Token, TokenKind
from isthmus.rules.syntax.tree import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    PropertyOf,
    Unary,
)
from isthmus.rules.system import canonical_name, closest_name
from isthmus.rules.value import COMPARISONS, LONG_MAX, LONG_MIN

__all__ = ["Parser", "parse_predicate"]

_Parsed = Expression | Predicate
_PREDICATES: Final = (Comparison, IsNull, Exists, In, Like, Not, And, Or)
# Placeholder for text that could not be parsed; a tree with it is never returned.
_HOLE: Final = Parameter("")


def parse_predicate(text: str, parameters: Collection[str] = ()) -> Predicate:
    """Parses a filter.

    Args:
        text: the filter.
        parameters: names, in lower case and without ``@``, that have values.

    Raises:
        RuleSyntaxError: with every fault.
    """
    parser = Parser(text, parameters, statements=False)
    tree = parser.filter()
    parser.finish()
    return tree


class Parser(Cursor):
    """Reads conditions and values."""

    def filter(self) -> Predicate:
        if self.ended():
            self.note(self.token, "the filter is empty", "write 1=1 to take every message")
            return Not(Exists(Property("user", "")))
        start = self.token
        tree = self.predicate(start, self.alternative())
        while not self.ended():
            if self.accept("AND", "OR"):
                self.predicate(self.token, self.alternative())
                continue
            token = self.advance()
            if token.text == ")" and token.kind is TokenKind.SYMBOL:
                self.note(token, "')' closes no '('", "take it out, or open the bracket before it")
            elif token.text in COMPARISONS and token.kind is TokenKind.SYMBOL:
                self.note(token, f"'{token.text}' cannot follow a condition", "compare two values; join with AND")
            else:
                self.note(token, f"{token.shown()} cannot follow a condition", _following_hint(token))
            self.skip(self.index)
        return tree

    def alternative(self) -> _Parsed:
        return self.chain("OR", Or)

    def conjunction(self) -> _Parsed:
        return self.chain("AND", And)

    def chain(self, keyword: str, join: type[And | Or]) -> _Parsed:
        read = self.conjunction if keyword == "OR" else self.guarded
        start = self.token
        first = read()
        if not self.at(keyword):
            return first
        operands = [self.predicate(start, first)]
        while self.accept(keyword):
            start = self.token
            operands.append(self.predicate(start, read()))
        return join(tuple(operands))

    def guarded(self) -> _Parsed:
        """One operand of AND and OR; a fault within it ends here."""
        nesting, start = self.nesting, self.index
        try:
            return self.negation()
        except BrokenError:
            self.nesting = nesting
            self.skip(start)
            return _HOLE

    def negation(self) -> _Parsed:
        token = self.accept("NOT")
        if token is None:
            return self.condition()
        self.enter(token)
        start = self.token
        operand = self.predicate(start, self.negation())
        self.nesting -= 1
        return Not(operand)

    def condition(self) -> _Parsed:
        start = self.token
        left = self.sum()
        token = self.token
        if self.at(*COMPARISONS):
            self.advance()
            right_start = self.token
            node = Comparison(token.text, self.value(start, left), self.value(right_start, self.sum()))
            if self.at(*COMPARISONS):
                raise self.failure(self.token, "comparisons cannot be chained", "write a < b AND b < c")
            return node
        if self.accept("IS"):
            negated = self.accept("NOT") is not None
            if not self.accept("NULL"):
                hint = "write = TRUE or = FALSE to compare" if self.at("TRUE", "FALSE") else ""
                raise self.failure(self.token, f"NULL is expected after IS{' NOT' if negated else ''}", hint)
            if not isinstance(left, Property) and left is not _HOLE:
                raise self.failure(start, "IS NULL takes a property", "put the property's name before it")
            return IsNull(left, negated) if isinstance(left, Property) else _HOLE
        if self.accept("NOT"):
            if self.at("NULL"):
                raise self.failure(self.token, "NULL cannot follow NOT here", "write IS NOT NULL")
            if not self.at("IN", "LIKE"):
                raise self.failure(self.token, f"IN or LIKE is expected after NOT, not {self.token.shown()}")
            return self.membership(start, left, negated=True)
        if self.at("IN", "LIKE"):
            return self.membership(start, left, negated=False)
        if token.kind is TokenKind.BAD:
            raise BrokenError
        return left

    def membership(self, start: Token, left: _Parsed, *, negated: bool) -> _Parsed:
        operand = self.value(start, left)
        if self.accept("LIKE"):
            return self.like(operand, negated=negated)
        self.advance()
        opened = self.expect("(", "after IN")
        if self.at(")"):
            raise self.failure(self.token, "the list of IN is empty", "name at least one value")
        items = [self.item()]
        while self.accept(","):
            items.append(self.item())
        self.expect(")", "after the list of IN", opened)
        return In(operand, tuple(items), negated)

    def item(self) -> Expression:
        start = self.token
        return self.value(start, self.sum())

    def like(self, operand: Expression, *, negated: bool) -> _Parsed:
        pattern_start = self.token
        pattern = self.item()
        escape: Expression | None = None
        escape_start = self.token
        if self.accept("ESCAPE"):
            escape_start = self.token
            escape = self.item()
        if isinstance(pattern, Constant) and not isinstance(pattern.value, str):
            self.note(pattern_start, "LIKE takes a string as its pattern", "put the pattern in single quotes")
        elif escape is not None and isinstance(escape, Constant):
            if not isinstance(escape.value, str) or len(escape.value) != 1:
                self.note(escape_start, "ESCAPE takes a string of one character", "e.g. ESCAPE '\\'")
            elif isinstance(pattern, Constant) and compile_like(str(pattern.value), escape.value) is None:
                hint = "double it, or write the character that it should escape"
                self.note(pattern_start, "the pattern ends with its escape character", hint)
        return Like(operand, pattern, escape, negated)

    # Values

    def sum(self) -> _Parsed:
        return self.arithmetic(("+", "-"))

    def arithmetic(self, operations: tuple[str, ...]) -> _Parsed:
        additive = operations == ("+", "-")
        start = self.token
        first = self.arithmetic(("*", "/", "%")) if additive else self.signed()
        rest: list[tuple[str, Expression]] = []
        while self.at(*operations):
            if not rest:
                first = self.value(start, first)
            operation = self.advance().text
            operand_start = self.token
            operand = self.arithmetic(("*", "/", "%")) if additive else self.signed()
            rest.append((operation, self.value(operand_start, operand)))
        return Arithmetic(self.value(start, first), tuple(rest)) if rest else first

    def signed(self) -> _Parsed:
        token = self.accept("+", "-")
        if token is None:
            return self.atom()
        if token.text == "-" and self.token.kind in (TokenKind.INTEGER, TokenKind.DOUBLE):
            number = -self.advance().value
            return Constant(number if isinstance(number, float) or number >= LONG_MIN else 0)
        self.enter(token)
        start = self.token
        operand = self.value(start, self.signed())
        self.nesting -= 1
        return Unary(token.text, operand)

    def atom(self) -> _Parsed:
        token = self.token
        match token.kind:
            case TokenKind.INTEGER:
                if token.value > LONG_MAX:
                    hint = f"longs end at {LONG_MAX}; write {token.text}.0 for a double"
                    self.note(token, f"{token.text} does not fit a long", hint)
                self.advance()
                return Constant(token.value)
            case TokenKind.DOUBLE:
                self.advance()
                return Constant(token.value)
            case TokenKind.STRING:
                self.advance()
                return Constant(token.text)
            case TokenKind.PARAMETER:
                return self.parameter()
            case TokenKind.NAME:
                return self.named()
            case TokenKind.KEYWORD if token.text in ("TRUE", "FALSE"):
                self.advance()
                return Constant(token.text == "TRUE")
            case TokenKind.KEYWORD if token.text == "NULL":
                self.advance()
                return Constant(None)
            case TokenKind.KEYWORD if token.text == "EXISTS":
                return self.exists()
            case TokenKind.SYMBOL if token.text == "(":
                return self.bracketed()
            case TokenKind.BAD:
                self.advance()
                raise BrokenError
        raise self.failure(token, f"a value is expected here, not {token.shown()}", _value_hint(token))

    def bracketed(self) -> _Parsed:
        opened = self.advance()
        self.enter(opened)
        if self.at(")"):
            raise self.failure(self.token, "the brackets are empty", "put a condition or a value between them")
        inner = self.alternative()
        self.nesting -= 1
        self.expect(")", "here", opened)
        return inner

    def exists(self) -> _Parsed:
        self.advance()
        opened = self.expect("(", "after EXISTS")
        token = self.token
        if token.kind is not TokenKind.NAME:
            raise self.failure(
                token, f"EXISTS takes a property's name, not {token.shown()}", "write EXISTS(name), EXISTS([a-b])"
            )
        operand = self.property()
        self.expect(")", "after the property of EXISTS", opened)
        return Exists(operand)

    def parameter(self) -> _Parsed:
        token = self.advance()
        if token.text.lower() not in self.parameters:
            self.note(token, f"parameter @{token.text} has no value", "give the rule a parameter of this name")
        return Parameter(token.text)

    def named(self) -> _Parsed:
        token = self.token
        following = self.tokens[self.index + 1]
        if token.delimited or following.text != "(" or following.kind is not TokenKind.SYMBOL:
            return self.property()
        self.advance()
        opened = self.advance()
        match token.text.lower():
            case "newid":
                self.expect(")", "after newid(", opened)
                return NewId()
            case "property" | "p":
                self.enter(opened)
                name_start = self.token
                name = self.value(name_start, self.sum())
                if isinstance(name, Constant) and not isinstance(name.value, str):
                    self.note(name_start, f"{token.text}() takes a string", "put the property's name in single quotes")
                self.nesting -= 1
                self.expect(")", f"after the name in {token.text}(", opened)
                return PropertyOf(name)
        raise self.failure(
            token, f"there is no function {token.text}", "the functions are newid(), property(name) and p(name)"
        )

    def property(self) -> Property:
        first = self.advance()
        if not self.at("."):
            return Property("user", first.text)
        scope = first.text.lower()
        if first.delimited or scope not in ("sys", "user"):
            hint = f"the scopes are sys and user; a name with a dot is written [{first.text}.…]"
            raise self.failure(first, f"'{first.text}' is no scope", hint)
        self.advance()
        name = self.token
        if name.kind is not TokenKind.NAME:
            hint = f"write {scope}.[{name.text}]" if self.accept(*KEYWORDS) else ""
            raise self.failure(name, f"a property's name is expected after {first.text}., not {name.shown()}", hint)
        self.advance()
        if self.at("."):
            raise self.failure(
                self.token, "a property's name ends here", f"write {scope}.[{name.text}.…] for one with a dot"
            )
        if scope == "user":
            return Property("user", name.text)
        canonical = canonical_name(name.text)
        if canonical is None:
            closest = closest_name(name.text)
            hint = f"did you mean sys.{closest}?" if closest else "properties of the application have the scope user"
            self.note(name, f"there is no system property {name.text}", hint)
        return Property("sys", canonical or name.text)

    # Checks

    def value(self, start: Token, node: _Parsed) -> Expression:
        if isinstance(node, _PREDICATES):
            raise self.failure(start, "a value is expected here, not a condition", "join conditions with AND or OR")
        return node

    def predicate(self, start: Token, node: _Parsed) -> Predicate:
        if isinstance(node, _PREDICATES):
            return node
        if node is not _HOLE:
            hint = "compare it with something"
            match node:
                case Constant(bool()):
                    hint = "write 1=1 or 1=0" if self.text.strip() == start.text else f"write {start.text} = TRUE"
                case Property():
                    hint = f"write {start.text} = TRUE or EXISTS({start.text})" if not self.at(".") else hint
            self.note(start, "a condition is expected here, not a value", hint)
            self.skip(self.index)
        return Not(Exists(Property("user", "")))


def _value_hint(token: Token) -> str:
    if token.kind is TokenKind.KEYWORD:
        return f"write [{token.text}] if a property has this name"
    if token.text == "=":
        return "'=' alone compares"
    if token.text == ".":
        return "numbers begin with a digit: 0.5"
    return ""


def _following_hint(token: Token) -> str:
    if token.kind is TokenKind.SYMBOL and token.text == ";":
        return "a filter is one condition without ';'"
    if token.kind is TokenKind.KEYWORD:
        return ""
    return "join conditions with AND or OR"
