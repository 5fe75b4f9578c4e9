"""A pair whose members are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.errors import ConnectionLostError
from isthmus.pairing.keeper.keeper import Keeper
from isthmus.pairing.pair_session import PairSession
from isthmus.topology.file.source import load
from isthmus.topology.pair.description import Description
from isthmus.topology.pair.difference import Step

__all__ = ["FILE", "Clockwork", "FakeMember", "Hanging", "session_in"]

FILE = """\
isthmus: 1
namespaces:
  ewr: {connection: env:ABSENT_EWR}
  jfk: {connection: env:ABSENT_JFK}
pairs:
  contoso: {primary: ewr, secondary: jfk}
"""


class Hanging(BaseException):
    """A member that would give no answer was asked."""


class FakeMember:
    """A namespace in memory; `hangs` makes every question to it an end of the test, `named` is what it calls itself."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.endpoint = f"{alias}.test"
        self.named = alias
        self.statuses = {"orders": "Active"}
        self.backlog = Counts()
        self.marker: Mapping[str, object] = {}
        self.hangs = False
        self.is_away = False
        self.on_marker: Callable[[], None] = lambda: None
        self.on_counts: Callable[[], None] = lambda: None
        self.on_asked: Callable[[], None] = lambda: None

    def _ask(self) -> None:
        self.on_asked()
        if self.hangs:
            raise Hanging(self.alias)
        if self.is_away:
            raise ConnectionLostError(self.alias)

    def identity(self) -> str:
        self._ask()
        return self.named

    def descriptions(self) -> list[Description]:
        self._ask()
        return [Description(kind="queue", names=(path,)).with_settings(status=s) for path, s in self.statuses.items()]

    def begin_descriptions(self) -> Future[list[Description]]:
        found = Future[list[Description]]()
        found.set_result(self.descriptions())
        return found

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        self._ask()
        self.on_counts()
        return {each.path: self.backlog for each in entities if self.backlog.total}

    def set_status(self, entity: Description, status: str) -> None:
        self._ask()
        self.statuses[entity.path] = status

    def make(self, step: Step, *, with_messages: bool = False) -> None:
        self._ask()
        self.statuses[step.entity.path] = step.entity.status

    def holds(self, entity: Description) -> bool:
        self._ask()
        return entity.path in self.statuses

    def delete_marker(self, pair: str) -> None:
        self._ask()
        self.marker = {}

    def map(self, work: Callable[[Description], None], asked: Iterable[Description]) -> list[None]:
        return [work(each) for each in asked]

    def read_marker(self, pair: str) -> Mapping[str, object]:
        self._ask()
        return self.marker

    def write_marker(
        self, pair: str, value: Mapping[str, object], *, unless: Callable[[Mapping[str, object]], bool] | None = None
    ) -> bool:
        self._ask()
        self.on_marker()
        if unless is not None and unless(self.marker):
            return False
        self.marker = dict(value)
        return True

    def close(self) -> None:
        pass


class Clockwork:
    """Counts what is asked of the members, and does something at one of it."""

    def __init__(self, members: dict[str, FakeMember], at: int, work: Callable[[], None]) -> None:
        self._at, self._work, self.count = at, work, 0
        for member in members.values():
            member.on_asked = self._tick

    def is_over(self) -> bool:
        """Whether it has been done; it is done once only."""
        self._work = lambda: None
        return self.count >= self._at

    def _tick(self) -> None:
        self.count += 1
        if self.count == self._at:
            self._work()


def session_in(folder: Path, members: dict[str, FakeMember]) -> PairSession:
    """The pair with a state folder in a folder."""
    file = folder / "isthmus.yaml"
    file.write_text(FILE)
    federation = load(str(file))
    made = PairSession(federation, federation.pairs["contoso"], folder / "state")
    vars(made).update(members=members, keeper=Keeper(members, made.file.keep))  # type: ignore[arg-type]
    return made
