"""Why a pair is not worked on, or a step is not made."""

from __future__ import annotations

from isthmus.errors import IsthmusError

__all__ = ["PairBrokenError", "SameNamespaceError", "StillHeldError", "StoppingError"]


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
    """An entity is not deleted at the standby member: the active one holds it after all."""

    code = "still-held"

    def __init__(self, path: str = "") -> None:
        super().__init__("", path=path)
        self.path = path

    def text(self) -> str:
        return (
            f"{self.path} is there, although the list of its namespace did not tell it; the next round compares again"
        )


class PairBrokenError(IsthmusError):
    """The members say nothing of the pair any more: it was broken on another machine."""

    code = "pair-broken"

    def __init__(self, pair: str = "") -> None:
        super().__init__("", pair=pair)
        self.pair = pair

    def text(self) -> str:
        return (
            f"pair '{self.pair}': both namespaces say nothing of it any more: it was broken with another state folder; nothing was "
            f"changed; end it here, too (isthmus pair break {self.pair}), or create it again after that"
        )


class StoppingError(IsthmusError):
    """The process ends while it makes a fail-over, which can be carried on."""

    code = "pair-stopping"
    retryable = True

    def __init__(self, pair: str = "") -> None:
        super().__init__("", pair=pair)
        self.pair = pair

    def text(self) -> str:
        return f"pair '{self.pair}': the process ends before the fail-over does; isthmus pair run or failover carries it on"
