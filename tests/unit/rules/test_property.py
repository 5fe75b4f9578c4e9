"""Laws of the rules language on generated filters, messages and texts."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.rules import DictView, Filter, FilterError, RuleSyntaxError, parse_action, parse_filter
from isthmus.rules.analysis.analysis import needs_property, never_matches, properties
from isthmus.rules.document import parse_value, show_value
from isthmus.rules.evaluation import like
from isthmus.rules.evaluation.closure import compile_predicate
from isthmus.rules.evaluation.like import compile_like, like_parts
from isthmus.rules.syntax.parser import parse_predicate
from isthmus.rules.syntax.token import KEYWORDS
from isthmus.rules.syntax.tree import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Property,
    PropertyOf,
    Unary,
    render,
)
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import COMPARISONS, LONG_MAX, LONG_MIN, all_of, any_of, arithmetic, compare, negated

NAMES = ("a", "b", "Color", "a b", "x]y", "AND", "größe", '"q"')
longs = st.integers(LONG_MIN, LONG_MAX) | st.integers(-3, 3)
doubles = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0])
texts = st.text(max_size=6) | st.sampled_from(["", "a", "b", "red", "a%", "it's"])
constants = st.builds(Constant, st.none() | st.booleans() | longs | doubles | texts)
user_properties = st.builds(Property, st.just("user"), st.sampled_from(NAMES))
named = user_properties | st.builds(Property, st.just("sys"), st.sampled_from(sorted(SYSTEM_PROPERTIES)))
values = (
    st.none()
    | st.booleans()
    | longs
    | st.floats()
    | texts
    | st.binary(max_size=4)
    | st.uuids()
    | st.timedeltas(timedelta(days=-1000), timedelta(days=1000))
    | st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # made aware
)
verdicts = st.sampled_from([True, False, None])
# No deadline: a busy machine is no fault of the code.
relaxed = settings(deadline=None, max_examples=60)


def chains(operations: str) -> Any:
    def build(operands: Any) -> Any:
        rest = st.lists(st.tuples(st.sampled_from(operations), operands), min_size=1, max_size=3)
        return st.builds(lambda first, more: Arithmetic(first, tuple(more)), operands, rest)

    return build


def unary(operand: Any) -> Unary:
    return Unary("-", operand)


expressions = st.recursive(
    constants | named | st.just(NewId()),
    lambda inner: (
        chains("+-")(inner)
        | chains("*/%")(inner)
        | st.builds(unary, inner)
        | st.builds(PropertyOf, st.builds(Constant, texts) | named)
    ),
    max_leaves=5,
)
likes = st.builds(
    lambda operand, pattern, negation: Like(operand, Constant(pattern), None, negation),
    expressions,
    texts,
    st.booleans(),
)
conditions = (
    st.builds(Comparison, st.sampled_from(sorted(COMPARISONS)), expressions, expressions)
    | st.builds(Comparison, st.sampled_from(sorted(COMPARISONS)), user_properties, constants)
    | st.builds(IsNull, named, st.booleans())
    | st.builds(Exists, named)
    | st.builds(
        lambda one, items, negation: In(one, tuple(items), negation),
        expressions,
        st.lists(expressions, min_size=1, max_size=3),
        st.booleans(),
    )
    | likes
)
predicates = st.recursive(
    conditions,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(lambda several: And(tuple(several)), st.lists(inner, min_size=2, max_size=3))
        | st.builds(lambda several: Or(tuple(several)), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=4,
)
messages = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)


def verdict_of(tree: Any, user: dict[str, Any]) -> bool | str | None:
    try:
        return compile_predicate(tree, {})(DictView({}, user))
    except FilterError:
        return "failed"


@relaxed
@given(predicates)
def test_a_rendered_tree_parses_to_itself(tree: Any) -> None:
    """tree.I1."""
    text = render(tree)
    if len(text) <= 1024:
        assert parse_predicate(text) == tree, text


@relaxed
@given(predicates, messages)
def test_a_verdict_is_one_of_three_and_filter_errors_are_the_only_ones(tree: Any, user: dict[str, Any]) -> None:
    """closure.I2."""
    assert verdict_of(tree, user) in (True, False, None, "failed")
    assert not isinstance(verdict_of(tree, user), int) or type(verdict_of(tree, user)) is bool


@relaxed
@given(conditions, conditions, messages)
def test_and_or_not_follow_the_tables(left: Any, right: Any, user: dict[str, Any]) -> None:
    one, other = verdict_of(left, user), verdict_of(right, user)
    if "newid" in render(left) + render(right) or "failed" in (one, other):
        return
    assert verdict_of(And((left, right)), user) == all_of(one, other)  # type: ignore[arg-type]
    assert verdict_of(Or((left, right)), user) == any_of(one, other)  # type: ignore[arg-type]
    assert verdict_of(Not(left), user) == negated(one)  # type: ignore[arg-type]
    assert verdict_of(And((left, right, left)), user) == all_of(one, other)  # type: ignore[arg-type]
    assert verdict_of(Or((left, right, left)), user) == any_of(one, other)  # type: ignore[arg-type]


@relaxed
@given(verdicts, verdicts, verdicts)
def test_laws_of_three_valued_logic(a: bool | None, b: bool | None, c: bool | None) -> None:
    assert negated(negated(a)) is a
    assert negated(all_of(a, b)) is any_of(negated(a), negated(b))
    assert all_of(a, b) is all_of(b, a)
    assert any_of(a, any_of(b, c)) is any_of(any_of(a, b), c)
    assert all_of(a, any_of(b, c)) is any_of(all_of(a, b), all_of(a, c))


@relaxed
@given(predicates, messages)
def test_double_negation_changes_nothing(tree: Any, user: dict[str, Any]) -> None:
    if "newid" not in render(tree):
        assert verdict_of(Not(Not(tree)), user) == verdict_of(tree, user)


fragments = st.sampled_from(
    [
        *sorted(KEYWORDS),
        "SET",
        "REMOVE",
        *"()=<>!,.;+-*/%'\"[]@ \n_#",
        "<>",
        "a",
        "sys.Label",
        "sys.",
        "1",
        "2.5",
        "1e9",
        "'x'",
    ]
)


@relaxed
@given(
    st.text(max_size=40)
    | st.lists(fragments, max_size=30).map(" ".join)
    | st.lists(fragments, max_size=30).map("".join)
)
@example("(" * 1024)
@example("NOT " * 256)
@example("-" * 1024)
@example("1+" * 511 + "1=1")
@example("p(" * 340)
@example("a=1 OR " * 146 + "1=1")
@example("9" * 1024)
@example("a IN (" + "1," * 500 + "1)")
def test_any_text_gives_a_tree_or_a_syntax_error_with_places(text: str) -> None:
    """parser.I1, I2."""
    for parse in (parse_filter, parse_action):
        try:
            parse(text)
        except RuleSyntaxError as error:
            faults = error.faults
        else:
            continue
        assert faults
        lines = text.split("\n")
        for fault in faults:
            assert 1 <= fault.line <= len(lines)
            assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1
            assert fault.message


@relaxed
@given(values, values, st.sampled_from(sorted(COMPARISONS)))
def test_comparisons_agree_with_each_other(a: Any, b: Any, operation: str) -> None:
    """value.I1, I2."""
    found = compare(operation, a, b)
    opposite = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}[operation]
    swapped = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(operation, operation)
    assert compare(swapped, b, a) is found
    if not any(isinstance(one, float) and math.isnan(one) for one in (a, b)):
        assert compare(opposite, a, b) is negated(found)
    if isinstance(a, bool) != isinstance(b, bool):
        assert found is None


@relaxed
@given(longs, longs, st.sampled_from("+-*/%"))
def test_long_arithmetic_stays_in_64_bits_or_fails(a: int, b: int, operation: str) -> None:
    """value.I4."""
    exact = {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "/": lambda: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "%": lambda: int(math.copysign(1, a)) * (abs(a) % abs(b)),
    }
    expected = None if operation in "/%" and b == 0 else exact[operation]()
    try:
        assert arithmetic(operation, a, b) == expected
    except FilterError:
        assert expected is None or not LONG_MIN <= expected <= LONG_MAX


@relaxed
@given(values, values, st.sampled_from("+-*/%"))
def test_arithmetic_never_raises_but_filter_error(a: Any, b: Any, operation: str) -> None:
    with contextlib.suppress(FilterError):
        arithmetic(operation, a, b)


@relaxed
@given(
    st.text(alphabet="ab%_\\.\n", max_size=8),
    st.text(alphabet="ab%_\\.\n", max_size=8),
    st.sampled_from(["", "\\", "a", "%"]),
)
def test_like_agrees_with_a_regular_expression(pattern: str, text: str, escape: str) -> None:
    """like.I1."""
    matcher, parts = compile_like(pattern, escape), like_parts(pattern, escape)
    assert (matcher is None) == (parts is None)
    if matcher is None or parts is None:
        return
    signs = {"%": ".*", "_": "."}
    expression = "".join(re.escape(part) if isinstance(part, str) else signs[repr(part)] for part in parts)
    assert matcher(text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


LIKE_LETTERS = "ab\n\u00e9\u4e2d\U0001f600"


@st.composite
def patterns_and_texts(draw: st.DrawFn) -> tuple[str, str]:
    """A pattern, and a text that it was made of, so that it mostly matches."""
    runs = draw(st.lists(st.text(alphabet=LIKE_LETTERS, max_size=6), min_size=2, max_size=5))
    pattern, text = "", ""
    for number, run in enumerate(runs):
        kept = draw(st.lists(st.booleans(), min_size=len(run), max_size=len(run)))
        passed = draw(st.text(alphabet=LIKE_LETTERS, max_size=4)) if number else ""
        pattern += ("%" if number else "") + "".join(
            c if is_kept else "_" for c, is_kept in zip(run, kept, strict=True)
        )
        text += passed + run
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(LIKE_LETTERS)) + text[at + draw(st.integers(0, 1)) :]
    return pattern, text


@relaxed
@given(patterns_and_texts(), st.integers(0, 3))
@example(("%_a%", "bbbba"), 0)
@example(("%_a%", "bbbbb"), 0)
def test_like_finds_pieces_by_bits_as_by_an_expression(pair: tuple[str, str], places: int) -> None:
    """like.I1: the path of long texts, on short ones."""
    pattern, text = pair
    signs = {"%": ".*", "_": "."}
    expression = "".join(signs[repr(p)] if not isinstance(p, str) else re.escape(p) for p in like_parts(pattern) or ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(like, "_COMPARISONS", -1)
        patch.setattr(like, "_PLACES", places)
        matcher = compile_like(pattern)
        assert matcher is not None
        assert matcher(text) is (re.fullmatch(expression, text, re.DOTALL) is not None)


@pytest.mark.parametrize("wide", ["", "\u4e2d"])
def test_like_compares_a_long_text_few_times(wide: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """like.I2: characters of text times characters of the piece would be 29 million comparisons."""
    compared: list[int] = []
    first = like._Bits._first

    def counted(bits: Any, left: int, *rest: Any) -> int:
        compared.append(left.bit_count())
        return first(bits, left, *rest)

    monkeypatch.setattr(like._Bits, "_first", counted)
    # A search by expression would not be counted here: it must not happen at all.
    stand_in = SimpleNamespace(
        compile=lambda text, flags: OnePlace(re.compile(text, flags)), escape=re.escape, DOTALL=re.DOTALL
    )
    monkeypatch.setattr(like, "re", stand_in)
    like.compile_like.cache_clear()
    matcher = compile_like("%_" + "b" * 900 + "c%")
    assert matcher is not None
    assert matcher("b" * 32_000 + wide) is False
    assert matcher("b" * 32_000 + "c" + wide) is True
    assert 0 < sum(compared) <= 2 * like._PLACES
    like.compile_like.cache_clear()


class OnePlace:
    """An expression that is compared at one place at a time only."""

    def __init__(self, expression: re.Pattern[str]) -> None:
        self.match = expression.match


def test_a_string_that_an_expression_makes_is_bounded() -> None:
    with pytest.raises(FilterError, match="limit is 131072"):
        arithmetic("+", "x" * 100_000, "x" * 100_000)


def test_like_does_not_explode() -> None:
    """like.I2."""
    matcher = compile_like("%a_" * 100 + "b")
    assert matcher is not None
    assert matcher("aa" * 20_000) is False


@relaxed
@given(values)
def test_values_survive_json(value: Any) -> None:
    found = parse_value(show_value(value))
    assert type(found) is type(value)
    assert found == value or (found != found and value != value)  # noqa: PLR0124  # NaN


@relaxed
@given(predicates, messages)
def test_what_analysis_excludes_does_not_happen(tree: Any, user: dict[str, Any]) -> None:
    """analysis.I1."""
    if verdict_of(tree, user) is not True:
        return
    assert never_matches(tree) is None
    present = {name.lower() for name in user}
    for one in properties(tree):
        if one.scope == "sys" or one.key not in present:
            assert needs_property(tree, one.key, one.scope) is None


@relaxed
@given(st.text(max_size=30))
def test_strings_and_names_survive_quoting(text: str) -> None:
    quoted = text.replace("'", "''")
    found = parse_filter(f"a = '{quoted}'")
    assert found.matches(DictView({}, {"a": text})) is True
    if text:
        delimited = text.replace("]", "]]")
        assert parse_filter(f"[{delimited}] = 1").matches(DictView({}, {text: 1})) is True


def test_a_uuid_compares_with_a_uuid_only() -> None:
    one = UUID(int=7)
    assert Filter("a = @p", {"p": one}).matches(DictView({}, {"a": one})) is True
    assert Filter("a = @p", {"p": one}).matches(DictView({}, {"a": str(one)})) is None
