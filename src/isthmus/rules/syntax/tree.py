"""The syntax tree of filters and actions.

What it is: immutable nodes that compare by value, and `render`, which writes a tree as text that parses to the same
tree. What it is not: meaning (see `closure`, `isthmus.replication.rule_column` and `analysis`, which walk it).

Chains of one operator are one node (``a AND b AND c``, ``a + b - c``), so that no tree is deeper than its brackets.

Invariants:
    I1. ``parse(render(tree)) == tree`` for every tree that the parser can give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from isthmus.rules.syntax.token import is_plain_name

__all__ = [
    "And",
    "Arithmetic",
    "Comparison",
    "Constant",
    "Exists",
    "Expression",
    "In",
    "IsNull",
    "Like",
    "NewId",
    "Node",
    "Not",
    "Or",
    "Parameter",
    "Predicate",
    "Property",
    "PropertyOf",
    "Remove",
    "Set",
    "Statement",
    "Unary",
    "children",
    "render",
]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, string, boolean or NULL. Constants of different type are different, though 1 == 1.0 == True."""

    value: bool | int | float | str | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True, slots=True)
class Property:
    """A property by name: a system one in canonical spelling, a user one as it was written."""

    scope: Literal["sys", "user"]
    name: str

    @property
    def key(self) -> str:
        """The name as a view expects it: lower case for user properties."""
        return self.name if self.scope == "sys" else self.name.lower()


@dataclass(frozen=True, slots=True)
class Parameter:
    """``@name``."""

    name: str


@dataclass(frozen=True, slots=True)
class NewId:
    """``newid()``."""


@dataclass(frozen=True, slots=True)
class PropertyOf:
    """``property(name)``: the user property whose name an expression gives."""

    name: Expression


@dataclass(frozen=True, slots=True)
class Unary:
    """A sign before an expression."""

    operation: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A chain of operators of one rank, all of ``+ -`` or all of ``* / %``, from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]

    @property
    def additive(self) -> bool:
        """Whether the chain is of ``+`` and ``-``."""
        return self.rest[0][0] in ("+", "-")


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left operation right``; ``!=`` is held as ``<>``."""

    operation: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    """``property IS [NOT] NULL``."""

    operand: Property
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Exists:
    """``EXISTS(property)``."""

    operand: Property


@dataclass(frozen=True, slots=True)
class In:
    """``operand [NOT] IN (items)``."""

    operand: Expression
    items: tuple[Expression, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """``operand [NOT] LIKE pattern [ESCAPE escape]``."""

    operand: Expression
    pattern: Expression
    escape: Expression | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT operand``."""

    operand: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """Two or more predicates joined by AND."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more predicates joined by OR."""

    operands: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Set:
    """``SET target = value``."""

    target: Property
    value: Expression


@dataclass(frozen=True, slots=True)
class Remove:
    """``REMOVE target``."""

    target: Property


Expression: TypeAlias = Constant | Property | Parameter | NewId | PropertyOf | Unary | Arithmetic
Predicate: TypeAlias = Comparison | IsNull | Exists | In | Like | Not | And | Or
Statement: TypeAlias = Set | Remove
Node: TypeAlias = Expression | Predicate | Statement


def children(node: Node) -> tuple[Expression | Predicate, ...]:
    """The nodes directly below a node, in the order of the text."""
    match node:
        case PropertyOf(name):
            return (name,)
        case Unary(_, operand) | IsNull(operand, _) | Exists(operand) | Not(operand):
            return (operand,)
        case Arithmetic(first, rest):
            return (first, *(operand for _, operand in rest))
        case Comparison(_, left, right):
            return (left, right)
        case In(operand, items, _):
            return (operand, *items)
        case Like(operand, pattern, escape, _):
            return (operand, pattern) if escape is None else (operand, pattern, escape)
        case And(operands) | Or(operands):
            return operands
        case Set(target, value):
            return (target, value)
        case Remove(target):
            return (target,)
    return ()


def render(node: Node) -> str:
    """Writes a tree as text that parses to the same tree."""
    match node:
        case Constant(value):
            return _constant(value)
        case Property(scope, name):
            shown = name if is_plain_name(name) else "[" + name.replace("]", "]]") + "]"
            return f"sys.{shown}" if scope == "sys" else shown
        case Parameter(name):
            return f"@{name}"
        case NewId():
            return "newid()"
        case PropertyOf(inner):
            return f"property({render(inner)})"
        case Unary(operation, operand):
            bare = isinstance(operand, Property | Parameter | NewId | PropertyOf)
            return operation + (render(operand) if bare else f"({render(operand)})")
        case Arithmetic(first, rest):
            parts = [_operand(node, first)]
            parts += [f"{operation} {_operand(node, operand)}" for operation, operand in rest]
            return " ".join(parts)
        case Comparison(operation, left, right):
            return f"{render(left)} {operation} {render(right)}"
        case IsNull(operand, negated):
            return f"{render(operand)} IS {'NOT ' if negated else ''}NULL"
        case Exists(operand):
            return f"EXISTS({render(operand)})"
        case In(operand, items, negated):
            return f"{render(operand)} {'NOT ' if negated else ''}IN ({', '.join(map(render, items))})"
        case Like(operand, pattern, escape, negated):
            tail = "" if escape is None else f" ESCAPE {render(escape)}"
            return f"{render(operand)} {'NOT ' if negated else ''}LIKE {render(pattern)}{tail}"
        case Not(operand):
            return f"NOT ({render(operand)})" if isinstance(operand, And | Or) else f"NOT {render(operand)}"
        case And(operands):
            return " AND ".join(f"({render(one)})" if isinstance(one, And | Or) else render(one) for one in operands)
        case Or(operands):
            return " OR ".join(f"({render(one)})" if isinstance(one, Or) else render(one) for one in operands)
        case Set(target, value):
            return f"SET {render(target)} = {render(value)}"
        case Remove(target):
            return f"REMOVE {render(target)}"


def _constant(value: bool | float | str | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def _operand(parent: Arithmetic, child: Expression) -> str:
    """A multiplicative chain needs no brackets within an additive one; any other chain within a chain does."""
    if isinstance(child, Arithmetic) and (child.additive or not parent.additive):
        return f"({render(child)})"
    return render(child)
