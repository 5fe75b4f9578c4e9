"""Application properties as structs."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from isthmus.amqp import types
from isthmus.connectors.servicebus.message.property_struct import describe, restore


@pytest.mark.parametrize(
    "value",
    [
        True,
        types.UByte(1),
        types.Long(1 << 62),
        types.ULong((1 << 64) - 1),
        1.5,
        "x",
        types.Symbol("x"),
        uuid.UUID(int=7),
        b"x",
    ],
    ids=lambda each: type(each).__name__,
)
def test_i1_a_value_comes_back_with_its_type(value: Any) -> None:
    found = restore(describe(value))
    assert (found, type(found)) == (value, type(value))


def test_a_row_without_types_gets_those_of_its_fields() -> None:
    assert restore({"long": 5}) == types.Long(5)
    assert restore({"string": "x"}) == "x"
    assert restore({"boolean": False}) is False
    assert restore({}) is None
    assert restore({"timespan_microseconds": 2}).value == 20
    with pytest.raises(ValueError, match="unknown type 'decimal'"):
        restore({"type": "decimal", "string": str(Decimal(1))})


@pytest.mark.parametrize("name", ["string", "boolean", "long", "double", "uuid", "binary", "timestamp", "amqp", None])
def test_a_struct_whose_value_is_null_is_a_null_property(name: str | None) -> None:
    assert restore({"type": name, "string": None, "boolean": None}) is None


@pytest.mark.parametrize("struct", [{"type": "string", "long": 5}, {"type": "amqp", "string": "x"}])
def test_a_value_that_its_type_does_not_say_is_refused(struct: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"the type is '{struct['type']}' and the field"):
        restore(struct)
