"""The rules of Service Bus subscriptions: SQL filters, SQL actions and correlation filters.

What it is: text to tokens to a tree to a Python closure over a message's properties, with three-valued logic, C#'s
promotions and all faults of a text reported at once. What it is not: I/O or AMQP; a message is read through `View`. The
other back end, a Spark Column, is `isthmus.replication.rule_column`; both are tested with the same fixtures.

The language is described in docs/reference/rules.md.
"""

from isthmus.rules.error import FilterError, RuleSyntaxError
from isthmus.rules.evaluation.action import REMOVED, Assignment, Changes, Removed
from isthmus.rules.evaluation.correlation import CorrelationFilter
from isthmus.rules.rule import (
    Action,
    FalseFilter,
    Filter,
    MessageFilter,
    TrueFilter,
    parse_action,
    parse_filter,
)
from isthmus.rules.value import MISSING, Missing, Value
from isthmus.rules.view import DictView, View

__all__ = [
    "MISSING",
    "REMOVED",
    "Action",
    "Assignment",
    "Changes",
    "CorrelationFilter",
    "DictView",
    "FalseFilter",
    "Filter",
    "FilterError",
    "MessageFilter",
    "Missing",
    "Removed",
    "RuleSyntaxError",
    "TrueFilter",
    "Value",
    "View",
    "parse_action",
    "parse_filter",
]
