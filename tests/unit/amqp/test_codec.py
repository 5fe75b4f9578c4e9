"""The AMQP type system: every value keeps its type, and no bytes make the decoder fail."""

import contextlib
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import codec
from isthmus.amqp.codec import CodecError, decode, encode, value_end
from isthmus.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

# (value, its shortest encoding): from the tables of the specification, part 1, section 1.6
FIXTURES = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(7), "5007"),
    (UShort(258), "600102"),
    (UInt(0), "43"),
    (UInt(255), "52ff"),
    (UInt(256), "7000000100"),
    (ULong(0), "44"),
    (ULong(1), "5301"),
    (ULong(2**40), "800000010000000000"),
    (Byte(-1), "51ff"),
    (Short(-2), "61fffe"),
    (Int(-1), "54ff"),
    (Int(1000), "71000003e8"),
    (Long(-128), "5580"),
    (Long(-129), "81ffffffffffffff7f"),
    (Float(1.5), "723fc00000"),
    (1.5, "823ff8000000000000"),
    (Char("é"), "73000000e9"),
    (Decimal32(b"1234"), "7431323334"),
    (Timestamp(1), "830000000000000001"),
    (uuid.UUID(int=1), "98" + "00" * 15 + "01"),
    (b"ab", "a0026162"),
    ("é", "a102c3a9"),
    (Symbol("a:b"), "a303613a62"),
    ([], "45"),
    ([True, None], "c003024140"),
    ({}, "c10100"),
    ({"a": Int(1)}, "c10602a101615401"),
    (Array(0x98, [uuid.UUID(int=2)]), "f00000001500000001" + "98" + "00" * 15 + "02"),
    (Described(ULong(0x24), []), "00532445"),
]


@pytest.mark.parametrize(("value", "encoded"), FIXTURES, ids=[text for _, text in FIXTURES])
def test_fixture_is_encoded_and_decoded_as_the_specification_says(value: object, encoded: str) -> None:
    assert encode(value).hex() == encoded
    back, end = decode(bytes.fromhex(encoded))
    assert back == value
    assert type(back) is type(value)
    assert end == len(encoded) // 2


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("5601", True),
        ("5600", False),
        ("b100000002c3a9", "é"),
        ("d00000000600000002" + "4140", [True, None]),
        ("e003015205", [5]),
    ],
)
def test_longer_encodings_are_read_too(encoded: str, value: object) -> None:
    assert decode(bytes.fromhex(encoded))[0] == value


def _ints(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(kind)


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    _ints(UByte, 0, 255),
    _ints(UShort, 0, 65535),
    _ints(UInt, 0, 2**32 - 1),
    _ints(ULong, 0, 2**64 - 1),
    _ints(Byte, -128, 127),
    _ints(Short, -(2**15), 2**15 - 1),
    _ints(Int, -(2**31), 2**31 - 1),
    _ints(Long, -(2**63), 2**63 - 1),
    _ints(Timestamp, -(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
    st.uuids(),
    st.binary(max_size=300),
    st.text(max_size=300),
    st.text(alphabet=st.characters(max_codepoint=127), max_size=300).map(Symbol),
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.builds(Described, st.builds(Symbol, st.just("x:y")), inner),
        st.lists(st.integers(-(2**63), 2**63 - 1).map(Long), max_size=4).map(lambda v: Array(0x81, v)),
        st.lists(st.text(max_size=4), max_size=4).map(lambda v: Array(0xB1, v)),
    ),
    max_leaves=20,
)


def _typed(value: object) -> object:
    """The value with the types of everything in it, since Long(1) == UInt(1)."""
    if isinstance(value, dict):
        return ("map", [(k, _typed(v)) for k, v in value.items()])
    if isinstance(value, list):
        return (type(value), [_typed(v) for v in value])
    if isinstance(value, Described):
        return ("described", _typed(value.descriptor), _typed(value.value))
    return (type(value), value)


@given(VALUES)
def test_i1_a_value_comes_back_with_its_type(value: object) -> None:
    raw = encode(value)
    back, end = decode(raw)
    assert _typed(back) == _typed(value)
    assert end == len(raw) == value_end(raw, 0)


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_i2_any_bytes_give_a_value_or_a_codec_error(raw: bytes) -> None:
    try:
        _, end = decode(raw)
    except CodecError:
        pass
    else:
        assert end <= len(raw)
    with contextlib.suppress(CodecError):
        assert value_end(raw, 0) <= len(raw)


@given(VALUES, st.data())
def test_i2_a_value_that_is_cut_off_is_refused(value: object, data: st.DataObject) -> None:
    raw = encode(value)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CodecError):
        value_end(raw[:cut], 0)
    with pytest.raises(CodecError):
        decode(raw[:cut])


def test_i2_nesting_and_counts_are_bounded() -> None:
    deep = b"\xc0\x7f\x01" * 200
    for raw in (
        deep,
        b"\0" * 5000,
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    ):
        with pytest.raises(CodecError):
            decode(raw)


def _map_of(keys: list[bytes]) -> bytes:
    return codec.encode_map([item for key in keys for item in (key, b"\x40")])


# The hash of an integer in Python is its remainder by this number, and a UUID is an integer of 128 bits.
MODULUS = 2**61 - 1


@pytest.mark.parametrize(
    "keys",
    [
        [b"\x98" + (number * MODULUS).to_bytes(16, "big") for number in range(100)],
        [encode(Described(ULong(1), number)) for number in range(100)],
    ],
    ids=["uuid", "described"],
)
def test_i2_keys_made_to_collide_are_refused(keys: list[bytes]) -> None:
    """A dict of them takes time quadratic in their number: 100,000 fit into one message."""
    with pytest.raises(CodecError, match="equal keys"):
        decode(_map_of(keys))
    assert len(decode(_map_of(keys[:30]))[0]) == 30


def test_maps_of_many_keys_are_read() -> None:
    keys = [encode(uuid.UUID(int=number << 64)) for number in range(1000)]
    assert len(decode(_map_of(keys))[0]) == 1000


def test_i2_arrays_of_values_without_bytes_are_short() -> None:
    def array(count: int) -> bytes:
        return b"\xf0\0\0\0\x05" + count.to_bytes(4, "big") + b"\x41"

    assert decode(array(64))[0] == [True] * 64
    with pytest.raises(CodecError, match="empty values"):
        decode(array(65))


INNER = "e0030150" + "07"  # an array of one ubyte, in the short form


@pytest.mark.parametrize(
    "encoded",
    [
        "e00601" + INNER,
        "e0f401c0f130" + INNER * 48,
        "e0f401c1f13c" + "".join(f"a101{0x41 + number:02x}" + INNER for number in range(30)),
    ],
    ids=["array", "list", "map"],
)
def test_i1_arrays_of_compounds_in_their_short_forms_are_written_again(encoded: str) -> None:
    value, end = decode(bytes.fromhex(encoded))
    assert end == len(encoded) // 2
    assert decode(encode(value))[0] == value


def test_symbols_beyond_ascii_in_an_array_are_written_as_alone() -> None:
    assert decode(encode(Array(0xA3, [Symbol("é")])))[0] == decode(encode([Symbol("é")]))[0] == ["?"]


def test_i2_half_of_a_surrogate_pair_is_no_character() -> None:
    """It cannot be written as the text of a key."""
    with pytest.raises(CodecError):
        decode(b"\x73\0\0\xd8\0")


@pytest.mark.parametrize(
    "value", ["\ud800", UByte(256), UInt(-1), ULong(2**64), Byte(128), 2**63, object(), {1: object()}]
)
def test_values_without_an_encoding_are_refused(value: object) -> None:
    with pytest.raises(CodecError):
        encode(value)


def test_lists_and_maps_never_use_the_empty_form_when_built_from_fields() -> None:
    assert codec.encode_list([]) == b"\xc0\x01\x00"
    assert codec.encode_map([]) == b"\xc1\x01\x00"


@pytest.mark.parametrize(
    "value",
    [
        Array(0xA1, ["x" * 256]),
        Array(0x50, [256]),
        Array(0xA1, [5]),
        Array(0x98, ["x"]),
        Array(0x81, ["x"]),
        Char("ab"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused(value: object) -> None:
    with pytest.raises(CodecError):
        encode(value)
