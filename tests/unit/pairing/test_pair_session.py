"""A forced fail-over against members in memory, the old one of which gives no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.pairing.keeper import Keeper
from isthmus.pairing.pair_run import PairRun
from isthmus.pairing.pair_session import PairSession
from isthmus.pairing.state import Fence, PairState, Phase
from isthmus.topology.file.source import load
from isthmus.topology.pair.description import Description

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
    """A namespace in memory; `hangs` makes every question to it an end of the test."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.statuses = {"orders": "Active"}
        self.held = Counts()
        self.marker: Mapping[str, object] = {}
        self.hangs = False
        self.on_marker: Callable[[], None] = lambda: None

    def _ask(self) -> None:
        if self.hangs:
            raise Hanging(self.alias)

    def descriptions(self) -> list[Description]:
        self._ask()
        return [Description(kind="queue", names=(path,)).with_settings(status=s) for path, s in self.statuses.items()]

    def begin_descriptions(self) -> Future[list[Description]]:
        found = Future[list[Description]]()
        found.set_result(self.descriptions())
        return found

    def counts(self, entities: Iterable[Description]) -> Mapping[str, Counts]:
        self._ask()
        return {each.path: self.held for each in entities if self.held.total}

    def set_status(self, entity: Description, status: str) -> None:
        self._ask()
        self.statuses[entity.path] = status

    def map(self, work: Callable[[Description], None], asked: Iterable[Description]) -> list[None]:
        return [work(each) for each in asked]

    def read_marker(self, pair: str) -> Mapping[str, object]:
        self._ask()
        return self.marker

    def write_marker(self, pair: str, value: Mapping[str, object]) -> None:
        self._ask()
        self.on_marker()
        self.marker = dict(value)

    def close(self) -> None:
        pass


@pytest.fixture
def members() -> dict[str, FakeMember]:
    return {alias: FakeMember(alias) for alias in ("ewr", "jfk")}


@pytest.fixture
def session(tmp_path: Path, members: dict[str, FakeMember]) -> PairSession:
    file = tmp_path / "isthmus.yaml"
    file.write_text(FILE)
    federation = load(str(file))
    made = PairSession(federation, federation.pairs["contoso"], tmp_path / "state")
    vars(made).update(members=members, keeper=Keeper(members, made.file.save))  # type: ignore[arg-type]
    return made


def fenced_standby(session: PairSession, members: dict[str, FakeMember]) -> None:
    """As after a fail-over to ewr and its end: jfk is fenced."""
    members["jfk"].statuses["orders"] = "Disabled"
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", epoch=2, fences={"jfk": Fence.CLOSED}))


def test_a_fenced_member_is_opened_without_asking_the_old_one(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    members["ewr"].hangs = True
    assert session.force().phase is Phase.OPENING
    with pytest.raises(Hanging):  # asked at last: for its fence
        session.finish()
    found = session.state()
    assert (found.active, found.phase, found.fence_of("ewr")) == ("jfk", Phase.STEADY, Fence.PENDING)
    assert members["jfk"].statuses == {"orders": "Active"}
    assert members["jfk"].marker == found.marker


def test_what_a_fenced_standby_holds_is_known_and_that_of_an_open_one_is_no_remainder(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """After a forced fail-over nobody gets it before a fail back, and the pair is steady and in step."""
    fenced_standby(session, members)
    assert session.keeper.left_behind(session.state()) == {}
    members["jfk"].held = Counts(active=3)
    assert session.keeper.left_behind(session.state())["orders"]["active"] == 3
    session.file.save(PairState(pair="contoso", active="ewr", standby="jfk", epoch=2))
    assert session.keeper.left_behind(session.state()) == {}


def test_the_run_keeps_nobody_from_a_fail_over_while_it_tells_the_members(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    fenced_standby(session, members)
    held = []

    def told() -> None:
        with session.file.held(0.0):
            held.append("free")

    members["ewr"].on_marker = told
    PairRun(session)._round()
    assert held == ["free"]


def test_a_forced_fail_over_to_an_open_member_needs_neither_a_secret_nor_a_client(tmp_path: Path) -> None:
    """It may be the lost region that the secrets are in."""
    file = tmp_path / "isthmus.yaml"
    file.write_text(FILE)
    federation = load(str(file))
    with PairSession(federation, federation.pairs["contoso"], tmp_path / "state") as session:
        session.file.save(PairState(pair="contoso", active="ewr", standby="jfk"))
        assert session.force().active == "jfk"
