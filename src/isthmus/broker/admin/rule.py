"""Rules as XML: filters, actions and their typed values.

What it is: RuleDescription and DefaultRuleDescription to descriptions and back. What it is not: a check of
expressions; the engine refuses one that does not parse.
Spec: docs/explanation/protocol.md, Administration, Rules; the types are those of .NET's serializer for ``KeyValueOfstringanyType``.

Invariants:
    I1. A written rule reads back equal; values keep their type.
    I2. Every rule is written with an action, if necessary an empty one: the Go client panics without it.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from isthmus.broker.admin.atom import SERVICE_BUS, format_time
from isthmus.broker.admin.description import INSTANCE
from isthmus.broker.admin.document import Node, element, text_element
from isthmus.broker.config.duration import format_duration, parse_duration
from isthmus.entities.catalog.description import (
    DEFAULT_RULE_NAME,
    INFINITE_MS,
    CorrelationFilter,
    DateTime,
    Duration,
    FalseFilter,
    Filter,
    Parameter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from isthmus.errors import InvalidArgumentError

__all__ = ["read_rule", "write_rule"]

_SCHEMA = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# From year 1 to year 9999, as far as XML clients can read.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)

_CORRELATION_FIELDS = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}


def read_rule(node: Node, name: str = "", *, created_at_ms: int) -> RuleDescription:
    """The rule in a ``RuleDescription`` or ``DefaultRuleDescription``.

    Args:
        node: the element.
        name: the rule's name from the URL, which counts; without one the element's, then ``$Default``.
        created_at_ms: when the rule was made.

    Raises:
        InvalidArgumentError: a part is missing, malformed or of an unknown type.
    """
    filter_node, action_node = node.find("Filter"), node.find("Action")
    return RuleDescription(
        name=name or node.find_text("Name") or DEFAULT_RULE_NAME,
        filter=_read_filter(filter_node) if filter_node is not None else TrueFilter(),
        action=_read_action(action_node) if action_node is not None else None,
        created_at_ms=created_at_ms,
    )


def write_rule(rule: RuleDescription) -> str:
    """The ``RuleDescription`` of a rule."""
    return element(
        "RuleDescription",
        _write_filter(rule.filter)
        + _write_action(rule.action)
        + text_element("CreatedAt", format_time(rule.created_at_ms))
        + text_element("Name", rule.name),
        {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE},
    )


def _read_filter(node: Node) -> Filter:
    match _type_of(node):
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(_expression(node), _read_map(node.find("Parameters")), *_compatibility(node))
        case "CorrelationFilter":
            values = {field: node.find_text(name) for name, field in _CORRELATION_FIELDS.items()}
            return CorrelationFilter(**values, properties=_read_map(node.find("Properties")))
        case other:
            raise InvalidArgumentError(f"The filter type '{other[:64]}' is not known.")


def _read_action(node: Node) -> SqlAction | None:
    match _type_of(node):
        case "EmptyRuleAction":
            return None
        case "SqlRuleAction":
            return SqlAction(_expression(node), _read_map(node.find("Parameters")), *_compatibility(node))
        case other:
            raise InvalidArgumentError(f"The action type '{other[:64]}' is not known.")


def _write_filter(value: Filter) -> str:
    match value:
        case SqlFilter():
            return _write_sql("Filter", "SqlFilter", value)
        case CorrelationFilter():
            fields = ((name, getattr(value, field)) for name, field in _CORRELATION_FIELDS.items())
            inside = "".join(text_element(name, text) for name, text in fields if text is not None)
            return element(
                "Filter", inside + _write_map("Properties", value.properties), {"i:type": "CorrelationFilter"}
            )
        case TrueFilter() | FalseFilter():
            constant = "1=1" if isinstance(value, TrueFilter) else "1=0"
            inside = text_element("SqlExpression", constant) + text_element("CompatibilityLevel", "20")
            return element("Filter", inside, {"i:type": type(value).__name__})


def _write_action(value: SqlAction | None) -> str:
    if value is None:
        return element("Action", "", {"i:type": "EmptyRuleAction"})
    return _write_sql("Action", "SqlRuleAction", value)


def _write_sql(name: str, kind: str, value: SqlFilter | SqlAction) -> str:
    inside = text_element("SqlExpression", value.expression)
    inside += text_element("CompatibilityLevel", str(value.compatibility_level))
    inside += _write_map("Parameters", value.parameters) if value.parameters else ""
    inside += text_element("RequiresPreprocessing", "true") if value.requires_preprocessing else ""
    return element(name, inside, {"i:type": kind})


def _type_of(node: Node) -> str:
    """The element's ``i:type`` without its prefix."""
    return node.attributes.get("type", "").rpartition(":")[2]


def _expression(node: Node) -> str:
    expression = node.find_text("SqlExpression")
    if expression is None:
        raise InvalidArgumentError(f"The {_type_of(node)} has no SqlExpression.")
    return expression


def _compatibility(node: Node) -> tuple[int, bool]:
    level = (node.find_text("CompatibilityLevel") or "20").strip()
    if not level.isdecimal() or len(level) > 9:
        raise InvalidArgumentError(f"The CompatibilityLevel '{level[:64]}' is not a number.")
    return int(level), (node.find_text("RequiresPreprocessing") or "").strip() == "true"


def _read_map(node: Node | None) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for item in node.find_all("KeyValueOfstringanyType") if node is not None else ():
        key, value = item.find_text("Key"), item.find("Value")
        if not key or value is None or key in values:
            raise InvalidArgumentError(f"A key is missing, has no value, or is given twice: '{(key or '')[:64]}'.")
        values[key] = _read_value(key, value)
    return values


def _read_value(key: str, node: Node) -> Parameter:
    if node.attributes.get("nil") in ("true", "1"):
        return None
    kind = _type_of(node) or "string"
    read = _READERS.get(kind)
    if read is None:
        raise InvalidArgumentError(f"The type '{kind[:64]}' of '{key[:64]}' is not known.")
    try:
        return read(node.text)
    except (ValueError, OverflowError, InvalidArgumentError):
        raise InvalidArgumentError(f"The value '{node.text[:64]}' of '{key[:64]}' is no {kind}.") from None


def _read_integer(text: str) -> int:
    value = int(text)
    if value not in _INT64:
        raise ValueError
    return value


def _read_boolean(text: str) -> bool:
    return ("false", "0", "true", "1").index(text.strip().lower()) > 1


def _read_time(text: str) -> DateTime:
    moment = datetime.fromisoformat(text.strip())
    zoned = moment.tzinfo is not None
    since_epoch = (moment if zoned else moment.replace(tzinfo=UTC)) - _EPOCH
    return DateTime(since_epoch // timedelta(milliseconds=1), zoned)


def _read_span(text: str) -> Duration:
    magnitude = parse_duration(text.strip().removeprefix("-"), infinite_ms=INFINITE_MS)
    return Duration(-magnitude if text.strip().startswith("-") else magnitude)


_READERS: dict[str, Callable[[str], Parameter]] = {
    "string": str,
    "char": lambda text: chr(int(text)).encode().decode(),  # half of a surrogate pair is none
    **dict.fromkeys(
        ("int", "long", "short", "byte", "integer", "unsignedByte", "unsignedShort", "unsignedInt", "unsignedLong"),
        _read_integer,
    ),
    **dict.fromkeys(("double", "float", "decimal"), float),
    "boolean": _read_boolean,
    "dateTime": _read_time,
    "date": _read_time,
    "duration": _read_span,
    "TimeSpan": _read_span,
    "guid": uuid.UUID,
    "base64Binary": lambda text: base64.b64decode(text, validate=True),
}


def _write_map(name: str, values: dict[str, Parameter]) -> str:
    return element(
        name,
        "".join(
            element("KeyValueOfstringanyType", text_element("Key", key) + _write_value(value))
            for key, value in values.items()
        ),
    )


def _write_value(value: Parameter) -> str:
    if value is None:
        return element("Value", "", {"i:nil": "true"})
    kind, text = _typed(value)
    # The JavaScript client drops five characters, "d6p1:", and uses the rest as the type.
    namespace = _SERIALIZATION if kind == "guid" else _SCHEMA
    return text_element("Value", text, {"i:type": f"d6p1:{kind}", "xmlns:d6p1": namespace})


def _typed(value: str | bool | float | bytes | uuid.UUID | DateTime | Duration) -> tuple[str, str]:
    """A value's type and text."""
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return "int" if value in _INT32 else "long", str(value)
        case float():
            return "double", repr(value) if math.isfinite(value) else {"inf": "INF", "-inf": "-INF"}.get(
                str(value), "NaN"
            )
        case bytes():
            return "base64Binary", base64.b64encode(value).decode()
        case uuid.UUID():
            return "guid", str(value)
        case DateTime():
            moment = _EPOCH + timedelta(milliseconds=min(max(value.ms, _FIRST_MS), _LAST_MS))
            text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds" if value.ms % 1000 else "seconds")
            return "dateTime", text + ("Z" if value.zoned else "")
        case Duration():
            return "duration", ("-" if value.ms < 0 else "") + format_duration(abs(value.ms))
        case str():
            return "string", value
