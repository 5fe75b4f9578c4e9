"""Numbers of JSON keep their digits."""

from __future__ import annotations

import copy
import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.message.json_number import exceeds_float, read_exactly, read_json, write_json

LONG = [
    "1e400",
    "-1E+400",
    "1e-400",
    "1E99999999999999999999999",
    "0.1000000000000000055",
    "12345678901234567890.5",
    "123456789012345678901234567890",
    "0.10000000000000001",
]


@pytest.mark.parametrize("text", LONG)
def test_i1_a_number_that_no_float_holds_is_written_with_its_digits(text: str) -> None:
    body = f'{{"a":[{text},1],"b":{{"c":{text}}},"d\\"":"é"}}'
    value = read_json(body.encode())
    assert read_json(b"\xef\xbb\xbf" + body.encode()) == value
    for each in (value, copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert write_json(each) == body
    assert write_json(read_json(body.encode("utf-16-le"))) == body


@given(st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(["f", "e", ""]))
def test_i1_whatever_a_number_is_its_value_stays(number: Decimal, form: str) -> None:
    text = format(number, form)
    if text.startswith(("+", ".")) or len(text) > 4_000:
        return
    assert Decimal(write_json(read_json(text.encode()))) == Decimal(text)


def test_i2_numbers_that_a_float_holds_are_floats() -> None:
    value = read_json(b"[1.5,1e5,0.1234567890123456,-0.0,12345678901234.5]")
    assert {type(each) for each in value} == {float}
    assert read_exactly(b'{"a":1.5,"b":[12345678901234567890,1e22,1e300]}')[1]
    assert not read_exactly(b"[0.1000000000000000055]")[1]
    assert read_exactly(b"[1]")[1]


def test_who_reckons_with_one_reckons_with_a_float() -> None:
    (number,) = read_json(b"[0.1000000000000000055]")
    assert number == 0.1
    assert number * 2 == 0.2
    assert str(number) == f"{number!r}" == "0.1000000000000000055"


@pytest.mark.parametrize(
    ("text", "exceeds"),
    [("1e400", True), ("[1e-400]", True), ('{"a":[0.1000000000000000055]}', False), ("0e-400", False)],
)
def test_what_is_beyond_a_float_is_reported(text: str, exceeds: bool) -> None:
    assert exceeds_float(read_json(text.encode())) is exceeds


@pytest.mark.parametrize("value", [{2: 2, None: [], True: {}, 1.5: ()}, [None, "é", "\ud800"], {"a": float("inf")}, []])
def test_everything_else_is_written_as_json_does_it(value: Any) -> None:
    assert write_json(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def test_what_holds_itself_is_refused_and_what_is_deep_is_written() -> None:
    around: list[Any] = []
    around.append(around)
    with pytest.raises(ValueError, match="Circular"):
        write_json(around)
    deep = read_json(b"[" * 600 + b"]" * 600)
    assert write_json(deep) == "[" * 600 + "]" * 600
