"""`$management` operations on a subscription's rules: add, remove, enumerate.

What it is: rules in their AMQP forms, maps in requests and described lists in replies. What it is not: parsing of
expressions, which the engine does, nor waiting for the disk,
which the node does. Spec: docs/explanation/protocol.md, Management (descriptors: the filters' have one digit less).
"""

from __future__ import annotations

import uuid
from typing import Any

from isthmus.amqp.types import Described, Int, Timestamp, ULong
from isthmus.broker.link.request import Reply, Request, Respond, text_map
from isthmus.entities import (
    CorrelationFilter,
    DateTime,
    Duration,
    Engine,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from isthmus.errors import EntityNotFoundError, InvalidArgumentError, NotAllowedError

__all__ = ["add", "enumerate_rules", "remove"]

_RULE, _EMPTY_ACTION, _SQL_ACTION = 0x13700000004, 0x13700000005, 0x13700000006
_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER, _CORRELATION_FILTER = 0x1370000006, 0x1370000007, 0x1370000008, 0x1370000009
_CORRELATION_FIELDS = {
    "correlation-id": "correlation_id",
    "message-id": "message_id",
    "to": "to",
    "reply-to": "reply_to",
    "label": "label",
    "session-id": "session_id",
    "reply-to-session-id": "reply_to_session_id",
    "content-type": "content_type",
}
_SUBSCRIPTIONS = "/subscriptions/"


def add(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """add-rule."""
    topic, subscription = _subscription(entity)
    description = text_map(request.field("rule-description", dict))
    name = request.field("rule-name", str, optional=True) or description.get("rule-name")
    if not isinstance(name, str):
        raise InvalidArgumentError("the request lacks 'rule-name'")
    rule = RuleDescription(name, _filter(description), _action(description.get("sql-rule-action")))
    engine.create_rule(topic, subscription, rule)
    respond(Reply())


def remove(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """remove-rule."""
    topic, subscription = _subscription(entity)
    name = request.field("rule-name", str)
    if engine.get_rule(topic, subscription, name) is None:
        raise EntityNotFoundError(f"{entity}/Rules/{name}")
    engine.delete_rule(topic, subscription, name)
    respond(Reply())


def enumerate_rules(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """enumerate-rules."""
    topic, subscription = _subscription(entity)
    skip = request.field("skip", int, optional=True) or 0
    top = request.field("top", int, optional=True)
    rules = engine.list_rules(topic, subscription)[max(skip, 0) :]
    rules = rules if top is None else rules[: max(top, 0)]
    if rules:
        respond(Reply(body={"rules": [{"rule-description": _described(rule)} for rule in rules]}))
    else:
        respond(Reply(204, "No rules were found."))


def _subscription(entity: str) -> tuple[str, str]:
    at = entity.lower().find(_SUBSCRIPTIONS)
    if at < 0:
        raise NotAllowedError(f"'{entity}' is no subscription; only subscriptions have rules.")
    return entity[:at], entity[at + len(_SUBSCRIPTIONS) :]


def _filter(description: dict[str, Any]) -> Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if isinstance(sql, dict):
        return SqlFilter(_expression(sql))
    if isinstance(correlation, dict):
        values = text_map(correlation)
        properties = text_map(values.get("properties")) if isinstance(values.get("properties"), dict) else {}
        known = {field: values[name] for name, field in _CORRELATION_FIELDS.items() if values.get(name) is not None}
        if not all(isinstance(value, str) for value in known.values()):
            raise InvalidArgumentError("the fields of a correlation filter must be strings")
        return CorrelationFilter(
            **{field: str(value) for field, value in known.items()},
            properties={name: _parameter(name, value) for name, value in properties.items()},
        )
    if "true-filter" in description:
        return TrueFilter()
    if "false-filter" in description:
        return FalseFilter()
    raise InvalidArgumentError("'rule-description' has neither 'sql-filter' nor 'correlation-filter'")


def _action(value: Any) -> SqlAction | None:
    if not isinstance(value, dict) or not value.get("expression"):
        return None
    return SqlAction(_expression(value))


def _expression(value: dict[Any, Any]) -> str:
    expression = value.get("expression")
    if not isinstance(expression, str):
        raise InvalidArgumentError("'expression' must be a string")
    return expression


def _parameter(name: str, value: Any) -> Any:
    if isinstance(value, Timestamp):
        return DateTime(int(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InvalidArgumentError(f"the property '{name}' is no number of 64 bits with a sign, as filters take them")
    if value is None or isinstance(value, str | bool | int | float | bytes | uuid.UUID):
        return value
    raise InvalidArgumentError(f"the property '{name}' has a type that filters do not take")


def _described(rule: RuleDescription) -> Described:
    return _list(
        _RULE,
        _described_filter(rule.filter),
        _list(_EMPTY_ACTION)
        if rule.action is None
        else _list(_SQL_ACTION, rule.action.expression, Int(rule.action.compatibility_level)),
        rule.name,
        Timestamp(rule.created_at_ms),
    )


def _described_filter(value: Filter) -> Described:
    if isinstance(value, SqlFilter):
        return _list(_SQL_FILTER, value.expression, Int(value.compatibility_level))
    if isinstance(value, CorrelationFilter):
        fields = [getattr(value, field) for field in _CORRELATION_FIELDS.values()]
        return _list(_CORRELATION_FILTER, *fields, {name: _value(each) for name, each in value.properties.items()})
    return _list(_FALSE_FILTER if isinstance(value, FalseFilter) else _TRUE_FILTER)


def _value(value: Any) -> Any:
    if isinstance(value, DateTime | Duration):
        return Timestamp(value.ms) if isinstance(value, DateTime) else value.ms
    return value


def _list(descriptor: int, *fields: Any) -> Described:
    return Described(ULong(descriptor), list(fields))
