"""Performatives, SASL frames, termini, outcomes: the composite types of AMQP 1.0 (spec parts 2 to 5).

What it is: one dataclass per composite type, `encode`, and `decode`. Fields that a peer left out get the defaults of
the specification. What is sent always has every field (list0 and short lists break older SDKs).
Over 400 lines, because it is one list of types in the order of the specification.

Invariants:
    I1. Every composite is written as `00 53 <code>` and a list of all its fields; only outcomes without fields are list0.
    I2. Input with too few, too many or mistyped fields gives defaults or CodecError, never another exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from isthmus.amqp import codec
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort

__all__ = [
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Composite",
    "Coordinator",
    "Declare",
    "Declared",
    "Detach",
    "Discharge",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Received",
    "Rejected",
    "Released",
    "SaslChallenge",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "SaslResponse",
    "Source",
    "Target",
    "TransactionalState",
    "Transfer",
    "decode",
    "encode",
    "resolve",
]

_T = TypeVar("_T")
_REGISTRY: dict[int, type[Composite]] = {}


def _number(kind: type[int]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise CodecError(f"expected a number, got {type(value).__name__}")
        return kind(value)

    return convert


def _exact(*kinds: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise CodecError(f"expected {kinds[0].__name__}, got {type(value).__name__}")
        return value

    return convert


def _symbol(value: Any) -> Any:
    return Symbol(_exact(str)(value))


def _symbols(value: Any) -> Any:
    """`multiple` fields: one symbol or an array of them."""
    if isinstance(value, str):
        return [Symbol(value)]
    return [_symbol(item) for item in _exact(list)(value)]


def _any(value: Any) -> Any:
    return value


_boolean, _string, _binary, _map = _exact(bool), _exact(str), _exact(bytes), _exact(dict)
_uint, _ushort, _ubyte, _ulong = _number(UInt), _number(UShort), _number(UByte), _number(ULong)


def _f(convert: Callable[[Any], Any], *, default: Any) -> Any:
    return field(default=default, metadata={"convert": convert})


@dataclass(slots=True)
class Composite:
    """Base of all composite types; `descriptor` is the low byte of the numeric descriptor."""

    descriptor: ClassVar[int]

    def encode(self) -> bytes:
        """The value with its descriptor."""
        values = []
        for name, convert in _PLANS[type(self)]:
            value = getattr(self, name)
            if value is None:
                values.append(b"\x40")
            elif isinstance(value, Composite):
                values.append(value.encode())
            elif convert is _symbols:
                values.append(codec.encode(Array(0xB3 if any(len(s) > 255 for s in value) else 0xA3, value)))
            elif convert is _any or convert is _map:
                values.append(codec.encode(value))
            else:
                values.append(codec.encode(convert(value)))
        return bytes((0, 0x53, self.descriptor)) + (codec.encode_list(values) if values else b"\x45")


_PLANS: dict[type, tuple[tuple[str, Callable[[Any], Any]], ...]] = {}


@dataclass_transform(field_specifiers=(_f,))
def _composite(code: int) -> Callable[[type[_T]], type[_T]]:
    def wrap(cls: type[_T]) -> type[_T]:
        made: Any = dataclass(slots=True)(cls)
        made.descriptor = code
        _REGISTRY[code] = made
        _PLANS[made] = tuple((f.name, f.metadata["convert"]) for f in fields(made))
        result: type[_T] = made
        return result

    return wrap


def encode(value: Composite) -> bytes:
    """The composite's bytes, descriptor included."""
    return value.encode()


def decode(buffer: bytes, offset: int = 0) -> tuple[Composite, int]:
    """The composite at `offset` and where it ends.

    Raises:
        CodecError: the bytes are no known composite, or a field has the wrong type.
    """
    value, end = codec.decode(buffer, offset)
    made = resolve(value)
    if not isinstance(made, Composite):
        raise CodecError(f"{type(value).__name__} where a performative was expected")
    return made, end


_SYMBOLIC = {"amqp:accepted:list": 0x24, "amqp:rejected:list": 0x25, "amqp:released:list": 0x26,
             "amqp:modified:list": 0x27, "amqp:received:list": 0x23, "amqp:error:list": 0x1D,
             "amqp:source:list": 0x28, "amqp:target:list": 0x29, "amqp:coordinator:list": 0x30,
             "amqp:declare:list": 0x31, "amqp:discharge:list": 0x32, "amqp:declared:list": 0x33,
             "amqp:transactional-state:list": 0x34}  # fmt: skip


def resolve(value: Any) -> Any:
    """A described list of a known composite type as its dataclass; any other value unchanged."""
    if not isinstance(value, Described):
        return value
    descriptor = value.descriptor
    code = _SYMBOLIC.get(descriptor) if isinstance(descriptor, str) else descriptor
    cls = _REGISTRY.get(code) if isinstance(code, int) else None
    if cls is None or not isinstance(value.value, list):
        return value
    made = cls()
    for (name, convert), item in zip(_PLANS[cls], value.value, strict=False):
        if item is not None:
            try:
                setattr(made, name, convert(item if convert is _symbols else resolve(item)))
            except CodecError as error:
                raise CodecError(f"{cls.__name__.lower()}.{name}: {error}") from None
    return made


@_composite(0x1D)
class Error(Composite):
    """An error condition with its text (spec 2.8.14)."""

    condition: str = _f(_symbol, default=Symbol("amqp:internal-error"))
    description: str | None = _f(_string, default=None)
    info: dict[Any, Any] | None = _f(_map, default=None)


_error = _exact(Error)


@_composite(0x10)
class Open(Composite):
    """Spec 2.7.1."""

    container_id: str = _f(_string, default="")
    hostname: str | None = _f(_string, default=None)
    max_frame_size: int = _f(_uint, default=UInt(4294967295))
    channel_max: int = _f(_ushort, default=UShort(65535))
    idle_time_out: int | None = _f(_uint, default=None)
    outgoing_locales: list[str] | None = _f(_symbols, default=None)
    incoming_locales: list[str] | None = _f(_symbols, default=None)
    offered_capabilities: list[str] | None = _f(_symbols, default=None)
    desired_capabilities: list[str] | None = _f(_symbols, default=None)
    properties: dict[Any, Any] | None = _f(_map, default=None)


@_composite(0x11)
class Begin(Composite):
    """Spec 2.7.2."""

    remote_channel: int | None = _f(_ushort, default=None)
    next_outgoing_id: int = _f(_uint, default=UInt(0))
    incoming_window: int = _f(_uint, default=UInt(0))
    outgoing_window: int = _f(_uint, default=UInt(0))
    handle_max: int = _f(_uint, default=UInt(4294967295))
    offered_capabilities: list[str] | None = _f(_symbols, default=None)
    desired_capabilities: list[str] | None = _f(_symbols, default=None)
    properties: dict[Any, Any] | None = _f(_map, default=None)


@_composite(0x12)
class Attach(Composite):
    """Spec 2.7.3; `role` is True for a receiver."""

    name: str = _f(_string, default="")
    handle: int = _f(_uint, default=UInt(0))
    role: bool = _f(_boolean, default=False)
    snd_settle_mode: int = _f(_ubyte, default=UByte(2))
    rcv_settle_mode: int = _f(_ubyte, default=UByte(0))
    source: Any = _f(_any, default=None)
    target: Any = _f(_any, default=None)
    unsettled: dict[Any, Any] | None = _f(_map, default=None)
    incomplete_unsettled: bool = _f(_boolean, default=False)
    initial_delivery_count: int | None = _f(_uint, default=None)
    max_message_size: int | None = _f(_ulong, default=None)
    offered_capabilities: list[str] | None = _f(_symbols, default=None)
    desired_capabilities: list[str] | None = _f(_symbols, default=None)
    properties: dict[Any, Any] | None = _f(_map, default=None)


@_composite(0x13)
class Flow(Composite):
    """Spec 2.7.4."""

    next_incoming_id: int | None = _f(_uint, default=None)
    incoming_window: int = _f(_uint, default=UInt(0))
    next_outgoing_id: int = _f(_uint, default=UInt(0))
    outgoing_window: int = _f(_uint, default=UInt(0))
    handle: int | None = _f(_uint, default=None)
    delivery_count: int | None = _f(_uint, default=None)
    link_credit: int | None = _f(_uint, default=None)
    available: int | None = _f(_uint, default=None)
    drain: bool = _f(_boolean, default=False)
    echo: bool = _f(_boolean, default=False)
    properties: dict[Any, Any] | None = _f(_map, default=None)


@_composite(0x14)
class Transfer(Composite):
    """Spec 2.7.5."""

    handle: int = _f(_uint, default=UInt(0))
    delivery_id: int | None = _f(_uint, default=None)
    delivery_tag: bytes | None = _f(_binary, default=None)
    message_format: int | None = _f(_uint, default=None)
    settled: bool | None = _f(_boolean, default=None)
    more: bool = _f(_boolean, default=False)
    rcv_settle_mode: int | None = _f(_ubyte, default=None)
    state: Any = _f(_any, default=None)
    resume: bool = _f(_boolean, default=False)
    aborted: bool = _f(_boolean, default=False)
    batchable: bool = _f(_boolean, default=False)


@_composite(0x15)
class Disposition(Composite):
    """Spec 2.7.6; `role` is True where it is sent by the receiver of the deliveries."""

    role: bool = _f(_boolean, default=False)
    first: int = _f(_uint, default=UInt(0))
    last: int | None = _f(_uint, default=None)
    settled: bool = _f(_boolean, default=False)
    state: Any = _f(_any, default=None)
    batchable: bool = _f(_boolean, default=False)


@_composite(0x16)
class Detach(Composite):
    """Spec 2.7.7."""

    handle: int = _f(_uint, default=UInt(0))
    closed: bool = _f(_boolean, default=False)
    error: Error | None = _f(_error, default=None)


@_composite(0x17)
class End(Composite):
    """Spec 2.7.8."""

    error: Error | None = _f(_error, default=None)


@_composite(0x18)
class Close(Composite):
    """Spec 2.7.9."""

    error: Error | None = _f(_error, default=None)


@_composite(0x28)
class Source(Composite):
    """Spec 3.5.3."""

    address: str | None = _f(_any, default=None)
    durable: int = _f(_uint, default=UInt(0))
    expiry_policy: str = _f(_symbol, default=Symbol("session-end"))
    timeout: int = _f(_uint, default=UInt(0))
    dynamic: bool = _f(_boolean, default=False)
    dynamic_node_properties: dict[Any, Any] | None = _f(_map, default=None)
    distribution_mode: str | None = _f(_symbol, default=None)
    filter: dict[Any, Any] | None = _f(_map, default=None)
    default_outcome: Any = _f(_any, default=None)
    outcomes: list[str] | None = _f(_symbols, default=None)
    capabilities: list[str] | None = _f(_symbols, default=None)


@_composite(0x29)
class Target(Composite):
    """Spec 3.5.4."""

    address: str | None = _f(_any, default=None)
    durable: int = _f(_uint, default=UInt(0))
    expiry_policy: str = _f(_symbol, default=Symbol("session-end"))
    timeout: int = _f(_uint, default=UInt(0))
    dynamic: bool = _f(_boolean, default=False)
    dynamic_node_properties: dict[Any, Any] | None = _f(_map, default=None)
    capabilities: list[str] | None = _f(_symbols, default=None)


@_composite(0x30)
class Coordinator(Composite):
    """Spec 4.5.1: the target of a link that controls transactions."""

    capabilities: list[str] | None = _f(_symbols, default=None)


@_composite(0x31)
class Declare(Composite):
    """Spec 4.5.2."""

    global_id: Any = _f(_any, default=None)


@_composite(0x32)
class Discharge(Composite):
    """Spec 4.5.3."""

    txn_id: bytes = _f(_binary, default=b"")
    fail: bool = _f(_boolean, default=False)


@_composite(0x23)
class Received(Composite):
    """Spec 3.4.1."""

    section_number: int = _f(_uint, default=UInt(0))
    section_offset: int = _f(_ulong, default=ULong(0))


@_composite(0x24)
class Accepted(Composite):
    """Spec 3.4.2."""


@_composite(0x25)
class Rejected(Composite):
    """Spec 3.4.3."""

    error: Error | None = _f(_error, default=None)


@_composite(0x26)
class Released(Composite):
    """Spec 3.4.4."""


@_composite(0x27)
class Modified(Composite):
    """Spec 3.4.5."""

    delivery_failed: bool | None = _f(_boolean, default=None)
    undeliverable_here: bool | None = _f(_boolean, default=None)
    message_annotations: dict[Any, Any] | None = _f(_map, default=None)


@_composite(0x33)
class Declared(Composite):
    """Spec 4.5.5."""

    txn_id: bytes = _f(_binary, default=b"")


@_composite(0x34)
class TransactionalState(Composite):
    """Spec 4.5.8."""

    txn_id: bytes = _f(_binary, default=b"")
    outcome: Any = _f(_any, default=None)


@_composite(0x40)
class SaslMechanisms(Composite):
    """Spec 5.3.3.1."""

    sasl_server_mechanisms: list[str] | None = _f(_symbols, default=None)


@_composite(0x41)
class SaslInit(Composite):
    """Spec 5.3.3.2."""

    mechanism: str = _f(_symbol, default=Symbol(""))
    initial_response: bytes | None = _f(_binary, default=None)
    hostname: str | None = _f(_string, default=None)


@_composite(0x42)
class SaslChallenge(Composite):
    """Spec 5.3.3.3."""

    challenge: bytes = _f(_binary, default=b"")


@_composite(0x43)
class SaslResponse(Composite):
    """Spec 5.3.3.4."""

    response: bytes = _f(_binary, default=b"")


@_composite(0x44)
class SaslOutcome(Composite):
    """Spec 5.3.3.6; code 0 is ok, 1 a refused credential."""

    code: int = _f(_ubyte, default=UByte(0))
    additional_data: bytes | None = _f(_binary, default=None)
