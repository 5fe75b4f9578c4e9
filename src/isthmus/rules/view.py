"""How a filter sees a message: one property at a time, decoded only when asked for.

What it is: the protocol that the owner of messages implements (the broker over encoded bytes), and a view over dicts
for tests, tools and parameters. What it is not: any decoding of AMQP.

Invariants:
    I1. A view answers MISSING for what is not there and None only for a user property that is there and null.
    I2. User names arrive in lower case (``str.lower``); system names arrive in their canonical spelling (`system`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.rules.system import canonical_name
from isthmus.rules.value import MISSING, Missing, Value

__all__ = ["DictView", "View"]


class View(Protocol):
    """A message as rules read it. Values are those of `isthmus.rules.value`."""

    def user(self, name: str, /) -> Value | Missing:
        """The user property of that lower-case name, MISSING if the message has none."""
        ...

    def sys(self, name: str, /) -> Value | Missing:
        """The system property of that canonical name, MISSING if it is unset."""
        ...


class DictView:
    """A view over dicts.

    Args:
        sys: system properties by name in any spelling `canonical_name` knows; null counts as unset.
        user: user properties; of two names that differ only in case the first counts.
    """

    __slots__ = ("_sys", "_user")

    def __init__(self, sys: Mapping[str, Value] | None = None, user: Mapping[str, Value] | None = None) -> None:
        self._sys = {canonical_name(name) or name: value for name, value in (sys or {}).items() if value is not None}
        self._user: dict[str, Value] = {}
        for name, value in (user or {}).items():
            self._user.setdefault(name.lower(), value)

    def user(self, name: str, /) -> Value | Missing:
        """See `View.user`."""
        return self._user.get(name, MISSING)

    def sys(self, name: str, /) -> Value | Missing:
        """See `View.sys`."""
        return self._sys.get(name, MISSING)
