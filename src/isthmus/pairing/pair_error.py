"""The errors of a pair."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.errors import IsthmusError

__all__ = [
    "NotEmptyError",
    "NotInStepError",
    "PairBrokenError",
    "SameNamespaceError",
    "StillHeldError",
    "StoppingError",
]


class SameNamespaceError(IsthmusError):
    """Both members are one namespace."""

    code = "same-namespace"

    def __init__(self, pair: str = "", first: str = "", second: str = "") -> None:
        super().__init__("", pair=pair, first=first, second=second)
        self.pair, self.first, self.second = pair, first, second

    def text(self) -> str:
        return (
            f"pair '{self.pair}': {self.first} and {self.second} are one namespace; write connections to two namespaces"
        )


class StillHeldError(IsthmusError):
    """An entity is not deleted at the standby member: the active one has it after all."""

    code = "still-held"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)
        self.path = path

    def text(self) -> str:
        return (
            f"{self.path} exists, although the list of its namespace did not contain it; the next round compares again"
        )


class NotInStepError(IsthmusError):
    """A planned fail-over does not begin: the standby member lacks something."""

    code = "not-in-step"

    def __init__(self, pair: str = "", alias: str = "", what: str = "", count: int = 0) -> None:
        super().__init__("", pair=pair, alias=alias, what=what, count=count)
        self.pair, self.alias, self.what, self.count = pair, alias, what, count

    def text(self) -> str:
        return (
            f"pair '{self.pair}': nothing was switched: {self.alias} is not in step, {self.count} differences, first: "
            f"{self.what}; repair it (isthmus pair sync {self.pair}), exclude the entity, or use --force"
        )


class NotEmptyError(IsthmusError):
    """A planned fail-over was given up, since messages would stay behind; applications use the same member as before.

    Attributes:
        left: path → messages that would have stayed at `alias`, which is still active; `why`: the reason.
        moved: messages that had been moved to `other` before.
    """

    code = "not-empty"

    def __init__(
        self,
        pair: str = "",
        alias: str = "",
        left: Mapping[str, int] | None = None,
        why: str = "",
        moved: int = 0,
        other: str = "",
    ) -> None:
        super().__init__("", pair=pair, alias=alias, left=dict(left or {}), why=why, moved=moved, other=other)
        self.pair, self.alias, self.left, self.why = pair, alias, dict(left or {}), why
        self.moved, self.other = moved, other

    def text(self) -> str:
        shown = ", ".join(f"{path} ({count})" for path, count in list(self.left.items())[:5])
        more = f" and {len(self.left) - 5} more" if len(self.left) > 5 else ""
        return (
            f"pair '{self.pair}': nothing was switched, {self.alias} is still active: messages would stay behind in {shown}{more}"
            + (f" ({self.why})" if self.why else "")
            + (
                f"; {self.moved} messages were moved before, and wait at {self.other} until it is active"
                if self.moved
                else ""
            )
            + "; give receivers more time to empty it with --consume-for, or leave the messages behind with --leave"
        )


class PairBrokenError(IsthmusError):
    """The members have no marker of the pair any more: it was broken on another machine."""

    code = "pair-broken"

    def __init__(self, pair: str = "") -> None:
        super().__init__("", pair=pair)
        self.pair = pair

    def text(self) -> str:
        return (
            f"pair '{self.pair}': neither namespace has a marker of it any more: it was broken with another state folder; nothing was "
            f"changed; end the pairing here, too (isthmus pair break {self.pair}), or create it again after that"
        )


class StoppingError(IsthmusError):
    """The process ends during a fail-over, which can be continued."""

    code = "pair-stopping"
    retryable = True

    def __init__(self, pair: str = "") -> None:
        super().__init__("", pair=pair)
        self.pair = pair

    def text(self) -> str:
        return (
            f"pair '{self.pair}': the process ends before the fail-over does; isthmus pair run or failover continues it"
        )
