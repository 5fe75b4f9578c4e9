"""The copies of a message that a subscription gets.

What it is: a subscription's rules, compiled; matching rules without an action make one copy together, each matching rule
with an action makes its own. Spec: docs/explanation/protocol.md, Rules.

Invariants:
    I1. A filter or action that fails on a message selects nothing by its rule; the error is returned for the
        dead-letter decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from isthmus import rules
from isthmus.amqp.codec import CodecError
from isthmus.entities.catalog.description import (
    CorrelationFilter,
    DateTime,
    Duration,
    FalseFilter,
    Parameter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
)
from isthmus.entities.record.record import Parts
from isthmus.entities.record.view import MessageView, changed, moment

__all__ = ["CompiledRules", "Selection", "compile_rule"]


def _value(parameter: Parameter) -> rules.Value:
    if isinstance(parameter, DateTime):
        return moment(parameter.ms)
    if isinstance(parameter, Duration):
        return timedelta(milliseconds=parameter.ms)
    return parameter


def _values(parameters: Mapping[str, Parameter]) -> dict[str, rules.Value]:
    return {name: _value(parameter) for name, parameter in parameters.items()}


def compile_rule(rule: RuleDescription) -> _Compiled:
    """A rule's name, compiled filter and compiled action.

    Raises:
        RuleSyntaxError: an expression does not parse; an InvalidArgumentError with every fault.
    """
    described = rule.filter
    compiled: rules.MessageFilter
    if isinstance(described, TrueFilter):
        compiled = rules.TrueFilter()
    elif isinstance(described, FalseFilter):
        compiled = rules.FalseFilter()
    elif isinstance(described, SqlFilter):
        compiled = rules.parse_filter(described.expression, _values(described.parameters))
    else:
        compiled = _correlation(described)
    action = rule.action
    if action is None or not action.expression.strip():
        return rule.name, compiled, None
    return rule.name, compiled, rules.parse_action(action.expression, _values(action.parameters))


def _correlation(described: CorrelationFilter) -> rules.CorrelationFilter:
    wanted = {
        "CorrelationId": described.correlation_id,
        "MessageId": described.message_id,
        "To": described.to,
        "ReplyTo": described.reply_to,
        "Label": described.label,
        "SessionId": described.session_id,
        "ReplyToSessionId": described.reply_to_session_id,
        "ContentType": described.content_type,
    }
    sys = {name: value for name, value in wanted.items() if value is not None}
    return rules.CorrelationFilter(sys, _values(described.properties))


_Compiled = tuple[str, rules.MessageFilter, rules.Action | None]


class CompiledRules:
    """A subscription's rules, each compiled once: it may have many, and they change one by one."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[RuleDescription, _Compiled]] = {}

    def selection(self, descriptions: Iterable[RuleDescription]) -> Selection:
        """The selection by these rules; rule objects that are known already are not compiled again."""
        before, self._known = self._known, {}
        for description in descriptions:
            known = before.get(description.name)
            if known is None or known[0] is not description:
                known = (description, compile_rule(description))
            self._known[description.name] = known
        return Selection([compiled for _, compiled in self._known.values()])


class Selection:
    """The rules of one subscription.

    Args:
        compiled: its rules, by `compile_rule`.

    Attributes:
        takes_all: whether every message makes exactly one unchanged copy, so that no view is needed.
        takes_none: whether there is no rule at all.
        cost: the most evaluations and copies for one message.
    """

    __slots__ = ("_acting", "_plain", "cost", "takes_all", "takes_none")

    def __init__(self, compiled: Sequence[_Compiled]) -> None:
        self._plain = [matcher.matches for _, matcher, action in compiled if action is None]
        self._acting = [(name, matcher.matches, action.apply) for name, matcher, action in compiled if action]
        always = any(action is None and isinstance(matcher, rules.TrueFilter) for _, matcher, action in compiled)
        if always:
            self._plain = [rules.TrueFilter().matches]
        self.takes_all = always and not self._acting
        self.takes_none = not compiled
        self.cost = 0 if self.takes_none else 1 if self.takes_all else len(self._plain) + 2 * len(self._acting) + 1

    def copies(self, view: MessageView) -> tuple[list[Parts], Exception | None]:
        """The copies for this subscription, and the last evaluation error if a rule failed."""
        copies: list[Parts] = []
        failed: Exception | None = None
        for matches in self._plain:
            try:
                if matches(view) is True:
                    copies.append(view.parts)
                    break
            except (rules.FilterError, CodecError) as error:
                failed = error
        for name, matches, apply in self._acting:
            try:
                if matches(view) is True:
                    copies.append(changed(view, apply(view), name))
            except (rules.FilterError, CodecError) as error:
                failed = error
        return copies, failed
