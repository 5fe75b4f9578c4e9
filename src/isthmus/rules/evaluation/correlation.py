"""Correlation filters: all of the given properties must be equal.

Spec: docs/explanation/protocol.md, Rules: AND over the given fields; string values case-sensitive, names of user properties not; a field
that is not given takes any value. A correlation filter is never unknown: what is missing does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from isthmus.errors import Fault
from isthmus.rules.error import RuleSyntaxError
from isthmus.rules.system import SYSTEM_PROPERTIES, canonical_name
from isthmus.rules.value import Value, compare, plain
from isthmus.rules.view import View

__all__ = ["CorrelationFilter"]


@dataclass(frozen=True)
class CorrelationFilter:
    """A filter by equality.

    Attributes:
        sys: wanted system properties, by name (MessageId, CorrelationId, Label, To, ReplyTo, SessionId,
            ReplyToSessionId, ContentType; in any case).
        user: wanted user properties, by name in any case.
        matches: whether a message has them all.

    Raises:
        RuleSyntaxError: a system property that correlation filters do not know.
    """

    sys: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        faults = []
        sys = {}
        for name, value in self.sys.items():
            canonical = canonical_name(name)
            if canonical is None or not SYSTEM_PROPERTIES[canonical].correlated:
                known = ", ".join(one.name for one in SYSTEM_PROPERTIES.values() if one.correlated)
                faults.append(Fault(f"a correlation filter has no field {name}", f"its fields are {known}"))
            else:
                sys[canonical] = value
        if faults:
            raise RuleSyntaxError(faults, repr(self))
        object.__setattr__(self, "sys", sys)
        object.__setattr__(self, "user", {name: plain(value) for name, value in self.user.items()})
        object.__setattr__(self, "matches", self._compile())

    matches: Callable[[View], bool] = field(init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[CorrelationFilter], tuple[Mapping[str, str], Mapping[str, Value]]]:
        return type(self), (self.sys, self.user)

    def __hash__(self) -> int:
        return hash((frozenset(self.sys.items()), frozenset(self.user.items())))

    def _compile(self) -> Callable[[View], bool]:
        sys = tuple(self.sys.items())
        # Strings and longs of one type need no look at their types.
        user = tuple(
            (name.lower(), value, type(value) if isinstance(value, str | int) else None)
            for name, value in self.user.items()
        )
        if len(sys) == 1 and not user:
            ((only_name, only_value),) = sys
            return lambda view: view.sys(only_name) == only_value

        def matches(view: View) -> bool:
            for name, value in sys:
                if view.sys(name) != value:
                    return False
            for key, wanted, exact in user:
                found = view.user(key)
                if type(found) is exact:
                    if found != wanted:
                        return False
                elif compare("=", found, wanted) is not True:
                    return False
            return True

        return matches
