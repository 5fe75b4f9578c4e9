"""The rule with which a subscription is created.

What it is: a `DefaultRuleDescription`, put into the request that creates a subscription (docs/explanation/protocol.md, Administration).
The clients for .NET and Java have a parameter for it, and the one for Python has none. What it is not: the rules that a subscription
gets later.

Invariants:
    I1. Only the body of a request that creates a subscription changes, and only while a rule is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree as ET

from isthmus.topology.pair.description import Description
from isthmus.topology.state import RuleState

__all__ = ["DefaultRule", "birth_rule", "with_default_rule"]

_SB = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
_XSI = "http://www.w3.org/2001/XMLSchema-instance"
_TYPE = f"{{{_XSI}}}type"

# The service reads data contracts in their order; the rule follows these.
_BEFORE_RULE = (
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
)
_COMPATIBILITY_LEVEL = "20"


class DefaultRule:
    """The rule of the subscriptions that one thread creates."""

    def __init__(self) -> None:
        self._rule: RuleState | None = None

    @contextmanager
    def given(self, rule: RuleState | None) -> Iterator[None]:
        """A context in which subscriptions are created with this rule; None is the service's `$Default`."""
        self._rule = rule
        try:
            yield
        finally:
            self._rule = None

    def put_into(self, request: Any) -> None:
        """Puts the rule into a request that creates a subscription."""
        if self._rule is None or request.method != "PUT" or not request.body:
            return
        body = with_default_rule(request.body, self._rule)
        request.set_bytes_body(body)
        request.headers["Content-Length"] = str(len(body))


def with_default_rule(body: str | bytes, rule: RuleState) -> bytes:
    """The Atom entry of a SubscriptionDescription with the rule inserted in order; any other body, and one that has a rule, unchanged."""
    entry = ET.fromstring(body)  # noqa: S314 - the body is our own client's
    description = entry.find(f".//{{{_SB}}}SubscriptionDescription")
    # A repeated request has its rule already; the service may refuse a second one.
    if description is None or description.find(f"{{{_SB}}}DefaultRuleDescription") is not None:
        return body.encode() if isinstance(body, str) else body
    before = {f"{{{_SB}}}{name}" for name in _BEFORE_RULE}
    position = sum(1 for element in description if element.tag in before)
    description.insert(position, _rule_element(rule))
    return bytes(ET.tostring(entry, encoding="utf-8"))


def birth_rule(rules: Sequence[Description]) -> RuleState | None:
    """The rule with which a subscription can be created, where it is the only one and can be encoded there; saves three requests."""
    if len(rules) != 1:
        return None
    kind, *condition = rules[0].settings["filter"]
    action, action_parameters = rules[0].settings["action"]
    if kind != "sql" or condition[1] or action_parameters or not condition[0]:
        return None
    native = rules[0].native
    return RuleState(rules[0].names[-1], native.filter.sql_expression, native.action.sql_expression if action else "")


def _rule_element(rule: RuleState) -> ET.Element:
    element = ET.Element(f"{{{_SB}}}DefaultRuleDescription")
    condition = ET.SubElement(element, f"{{{_SB}}}Filter", {_TYPE: "SqlFilter"})
    ET.SubElement(condition, f"{{{_SB}}}SqlExpression").text = rule.filter
    ET.SubElement(condition, f"{{{_SB}}}CompatibilityLevel").text = _COMPATIBILITY_LEVEL
    if rule.action:
        action = ET.SubElement(element, f"{{{_SB}}}Action", {_TYPE: "SqlRuleAction"})
        ET.SubElement(action, f"{{{_SB}}}SqlExpression").text = rule.action
        ET.SubElement(action, f"{{{_SB}}}CompatibilityLevel").text = _COMPATIBILITY_LEVEL
    else:
        ET.SubElement(element, f"{{{_SB}}}Action", {_TYPE: "EmptyRuleAction"})
    ET.SubElement(element, f"{{{_SB}}}Name").text = rule.name
    return element
