"""The driver's account of a query with two slots, against readers that connect, disconnect and answer late, by seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.bridge.frame import Kind, unpack_json
from isthmus.bridge.host.control.account import QueryAccount
from isthmus.bridge.host.control.effect import Add, Assign, SendFrame
from isthmus.bridge.host.control.message import Died, Ended, Lease, Report
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec

SLOTS = 2
NAMES = ("a", "b", "c")
QUICK = 60


def route(name: str) -> RouteSpec:
    return RouteSpec(name=name, source=End("memory", "a"), target=End("memory", "b"))


class Reader:
    """A reader: it handles one frame at a time, and ends a route only after a while."""

    def __init__(self, number: int, slot: int) -> None:
        self.number, self.slot = number, slot
        self.reported: deque[Any] = deque()  # frames in transit to it
        self.says: deque[Any] = deque()  # messages in transit to the driver
        self.carried: dict[str, RouteState] = {}
        self.again: set[str] = set()
        self.settled: dict[str, int] = {}
        self.is_ending = False

    def report(self, *names: str) -> None:
        self.says.append(
            Report({name: RouteReport(state=self.carried[name], settled=self.settled.get(name, 0)) for name in names})
        )

    def take(self, frame: Any) -> None:
        match frame:
            case ("add", name) if not self.is_ending:
                if self.carried.get(name) is RouteState.ENDING:
                    self.again.add(name)
                else:
                    self.carried[name] = RouteState.RUNNING
                    self.report(name)
            case ("remove", name) if name in self.carried:
                self.again.discard(name)
                if self.carried[name] is RouteState.RUNNING:
                    self.carried[name] = RouteState.ENDING
                self.report(name)
            case ("stop", _):
                self.is_ending = True
                self.again.clear()
                for name, state in self.carried.items():
                    if state is RouteState.RUNNING:
                        self.carried[name] = RouteState.ENDING

    def work(self, choose: random.Random) -> None:
        for name, state in list(self.carried.items()):
            if state is RouteState.RUNNING and choose.random() < 0.3:
                self.settled[name] = self.settled.get(name, 0) + choose.choice([1, 500, 5_000])
                self.report(name)
            elif state is RouteState.ENDING and choose.random() < 0.2:
                self.carried[name] = RouteState.ENDED
                self.report(name)
                if name in self.again:
                    self.again.discard(name)
                    self.carried[name] = RouteState.RUNNING
                    self.report(name)

    @property
    def open(self) -> set[str]:
        """The routes whose source it may read."""
        return {name for name, state in self.carried.items() if state is not RouteState.ENDED}


class Model:
    """The driver and its readers."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.now = 0.0
        self.number = 0
        self.account = QueryAccount("q")
        self.readers: dict[int, Reader] = {}
        self.wanted: set[str] = set()
        self.removed: set[str] = set()  # not to be carried again before they are reported as ended
        self.totals: dict[str, int] = {}
        self.account.assign([route("a")], 60.0)
        self.wanted.add("a")

    def carry_out(self, effects: Any) -> None:
        for effect in effects:
            reader = self.readers.get(getattr(effect, "reader", 0))
            if reader is None:
                continue
            match effect:
                case Assign(_, routes, _):
                    reader.reported.extend(("add", each.name) for each in routes)
                case Add(_, each):
                    reader.reported.append(("add", each.name))
                case SendFrame(number, kind, payload):
                    if kind == Kind.REMOVE:
                        reader.reported.append(("remove", unpack_json(payload)["name"]))
                    elif kind == Kind.STOP:
                        reader.reported.append(("stop", ""))
                        self.account.on_stop_sent(number)

    def begin(self, slot: int) -> None:
        """Spark starts a reader on a slot that has none."""
        self.number += 1
        self.readers[self.number] = Reader(self.number, slot)
        lease = Lease("q", self.number, slot, 100 + self.number, SLOTS)
        self.carry_out(self.account.on_message(self.number, lease, is_local=True, now=self.now))

    def leave(self, reader: Reader, *, dies: bool) -> None:
        while reader.says:
            self.receive(reader)
        if dies:
            self.carry_out(self.account.on_message(reader.number, Died(None), now=self.now))
        else:
            self.carry_out(self.account.on_message(reader.number, Ended(""), now=self.now))
        del self.readers[reader.number]
        self.carry_out(self.account.on_closed(reader.number, now=self.now))

    def receive(self, reader: Reader) -> None:
        self.carry_out(self.account.on_message(reader.number, reader.says.popleft(), now=self.now))

    def has_left(self, name: str) -> bool:
        """As `isthmus.replication.query.shared_query` sees it."""
        report = self.account.reports().get(name)
        return not self.account.is_busy() or (report is not None and report.state is RouteState.ENDED)

    def step(self, *, calm: bool = False) -> None:
        choose = self.choose
        self.now += choose.choice([0.01, 1.0, 6.0])
        slots = {reader.slot for reader in self.readers.values()}
        for slot in range(SLOTS):
            if slot not in slots and choose.random() < (1.0 if calm and slot == 0 else 0.2):
                self.begin(slot)
        for reader in list(self.readers.values()):
            for _ in range(choose.randint(0, 3)):
                if reader.reported:
                    reader.take(reader.reported.popleft())
            reader.work(choose)
            for _ in range(choose.randint(0, 3)):
                if reader.says:
                    self.receive(reader)
            if not calm and choose.random() < 0.02:
                self.leave(reader, dies=True)
            elif reader.is_ending and not reader.open:
                self.leave(reader, dies=False)
        if not calm and choose.random() < 0.2:
            self.wish(choose.choice(NAMES))
        self.check()

    def wish(self, name: str) -> None:
        """The driver carries a route, or no longer; it carries one again only once it has left."""
        if name in self.wanted:
            if self.choose.random() < 0.3:
                self.carry_out(self.account.move(name, self.choose.randrange(SLOTS)))
            else:
                self.wanted.discard(name)
                self.removed.add(name)
                self.carry_out(self.account.remove(name, "paused"))
        elif name not in self.removed or self.has_left(name):
            self.removed.discard(name)
            self.wanted.add(name)
            self.carry_out(self.account.add(route(name)))

    def check(self) -> None:
        for name in NAMES:
            carriers = [reader.number for reader in self.readers.values() if name in reader.open]
            assert len(carriers) < 2, f"{name} is carried by {carriers} at once"
        for name, report in self.account.reports().items():
            assert report.settled >= self.totals.get(name, 0), f"the total of {name} falls"
            self.totals[name] = report.settled


def play(seed: int) -> None:
    model = Model(seed)
    for _ in range(150):
        model.step()
    for _ in range(400):
        model.step(calm=True)
    seen: set[str] = set()
    for _ in range(100):  # a route may just be in transit to another slot
        model.step(calm=True)
        seen |= {name for reader in model.readers.values() for name in reader.open}
    assert seen == model.wanted, f"carried: {seen}, wanted: {model.wanted}"
    for name in model.removed:
        assert model.has_left(name), f"{name} never leaves"


def test_a_route_has_one_reader_and_comes_and_goes_whatever_readers_do() -> None:
    for seed in range(QUICK):
        try:
            play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.soak
def test_a_route_has_one_reader_and_comes_and_goes_for_long(
    long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count = random.SystemRandom().randrange(1 << 40), long_count(20_000)
    for seed in range(first, first + count):
        try:
            play(seed)
        except AssertionError as error:
            counted(f"{count} seeds from {first}", f"broken at {seed}")
            error.add_note(f"seed {seed}")
            raise
    counted(f"{count} seeds from {first}", "one reader each, none left behind")
