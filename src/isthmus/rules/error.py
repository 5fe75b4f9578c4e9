"""The two errors of the rules language: a text that does not parse, and a filter or action that fails on a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from isthmus.errors import Fault, InvalidArgumentError, IsthmusError

__all__ = ["FilterError", "RuleSyntaxError"]


class RuleSyntaxError(InvalidArgumentError):
    """An expression is not of the language; holds every fault found, in the order of the text.

    Attributes:
        faults: what is wrong, each with its line and column (1-based) and a hint.
        expression: the text that was refused.
    """

    code = "rule-syntax"

    def __init__(self, faults: Iterable[Fault] = (), expression: str = "") -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.line, fault.column)))
        self.expression = expression
        super().__init__("", faults=self.faults, expression=expression)

    @property
    def line(self) -> int:
        """Line of the first fault, from 1."""
        return self.faults[0].line if self.faults else 0

    @property
    def column(self) -> int:
        """Column of the first fault, from 1."""
        return self.faults[0].column if self.faults else 0

    def text(self) -> str:
        lines = (
            (f"{fault.file}: " if fault.file else "")
            + f"line {fault.line}, column {fault.column}: {fault.message}"
            + (f"; {fault.hint}" if fault.hint else "")
            for fault in self.faults
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "expression": self.expression,
            "line": self.line,
            "column": self.column,
            "faults": [asdict(fault) for fault in self.faults],
        }


class FilterError(IsthmusError):
    """Evaluation failed on one message, e.g. a division by zero; the rule does not select that message.

    A subscription with DeadLetteringOnFilterEvaluationExceptions dead-letters the message; others pass over it.
    """

    code = "filter-evaluation"
