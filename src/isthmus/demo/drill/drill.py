"""A drill: the loss of a member under load, simulated and measured.

What it is: the order of steps, for active-passive and all-active. An application is simulated at a steady rate
(`isthmus.demo.drill.application`); a member is lost, stays down, and returns; publishers and consumers switch as
docs/how-to/active-passive.md says. Two ways: with namespaces of its own, which it kills and starts again (`rehearse`), or with an
operator's federation, where a person is asked to make a member unreachable (`Drill` with `members` of its own). What it is not: the account
(`isthmus.demo.drill.account`).

Invariants:
    I1. No result depends on the machine's speed: each wait ends with its condition, or after a time without any progress.
    I2. A drill with namespaces of its own leaves nothing behind but its report.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from isthmus.demo.drill.account import DrillAccount, DrillReport
from isthmus.demo.drill.application import DrillConsumer, DrillPublisher
from isthmus.errors import InvalidArgumentError, OperationTimeoutError
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint, Federation

__all__ = ["PATTERNS", "Drill", "DrillPlan", "Members", "rehearse"]

PATTERNS = ("active-passive", "all-active")

TASK = TOPIC = "drill"
CONSUMERS = "consumers"
ALIASES = ("ewr", "jfk")
_TASKS = {
    "active-passive": f"  {TASK}: {{pattern: active-passive, queue: {TOPIC}, primary: ewr, secondary: jfk, failover_within: 5m}}\n",
    "all-active": f"  {TASK}: {{pattern: all-active, queue: {TOPIC}, members: [ewr, jfk]}}\n",
}
# Without any progress for so long, a wait gives up.
STILL_SECONDS = 60.0
# Messages of the lost member that did not arrive elsewhere in this time are taken to be nowhere else.
SETTLED_SECONDS = 3.0
_SLICE_SECONDS = 0.1


class Members(Protocol):
    """What makes a member unreachable, and reachable again; both block until it is."""

    def lose(self, alias: str) -> None:
        """The member is lost."""
        ...

    def bring_back(self, alias: str) -> None:
        """The member returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """What a drill does.

    Attributes:
        pattern: `active-passive` or `all-active`.
        members: aliases; the first is lost.
        topic: that is published to.
        subscription: that consumers share at each member.
        rate_per_second: of messages, of each publisher.
        before_seconds: of load before the loss.
        away_seconds: for how long the member is away, at least.
        after_seconds: of load after its return.
    """

    pattern: str
    members: Sequence[str] = ALIASES
    topic: str = TOPIC
    subscription: str = CONSUMERS
    rate_per_second: float = 100.0
    before_seconds: float = 5.0
    away_seconds: float = 10.0
    after_seconds: float = 5.0


class Drill:
    """One drill; the routes are running.

    Args:
        federation: with absolute paths.
        plan: what to do.
        members: makes members unreachable.
        say: called with the text of each step.
    """

    def __init__(
        self, federation: Federation, plan: DrillPlan, members: Members, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._plan = plan
        self._members = members
        self._say = say
        self._lost, *self._others = plan.members
        topics = [Endpoint(alias, plan.topic) for alias in plan.members]
        read = [Endpoint(alias, f"{plan.topic}/Subscriptions/{plan.subscription}") for alias in plan.members]
        if plan.pattern == "active-passive":
            self._account = DrillAccount(["application"])
            self._publishers = [DrillPublisher(federation, "application", topics, self._account, plan.rate_per_second)]
            self._consumers = [DrillConsumer(federation, "application", read, self._account)]
        else:
            self._account = DrillAccount(list(plan.members))
            self._publishers = [
                DrillPublisher(federation, alias, topics[at:] + topics[:at], self._account, plan.rate_per_second)
                for at, alias in enumerate(plan.members)
            ]
            self._consumers = [
                DrillConsumer(federation, alias, [read[at]], self._account) for at, alias in enumerate(plan.members)
            ]

    def play(self) -> DrillReport:
        """Run it; the report.

        Raises:
            OperationTimeoutError: no message was handled before the loss.
            IsthmusError: a member could not be lost or brought back.
        """
        for worker in (*self._consumers, *self._publishers):
            worker.start()
        try:
            self._load()
            self._lose()
            self._return()
            self._finish()
        finally:
            for worker in (*self._publishers, *self._consumers):
                worker.stop()
        return self._account.report()

    def _load(self) -> None:
        plan, account = self._plan, self._account
        self._say(f"publishing {plan.rate_per_second:g} messages a second")
        self._until(lambda: account.progress() > plan.rate_per_second, "no message is handled")
        time.sleep(plan.before_seconds)

    def _lose(self) -> None:
        account = self._account
        self._say(f"{self._lost} is lost")
        survivors = ["application"] if self._plan.pattern == "active-passive" else self._others
        asked_at = time.monotonic()
        self._members.lose(self._lost)  # an operator needs some time
        account.lost(self._lost, survivors, max(asked_at, account.last_sent(self._lost)))
        time.sleep(self._plan.away_seconds)
        missing, since = account.missing(), time.monotonic()
        while missing and time.monotonic() - since < SETTLED_SECONDS:
            time.sleep(_SLICE_SECONDS)
            found = account.missing()
            missing, since = (found, time.monotonic()) if found != missing else (missing, since)
        late = account.returns()
        self._say(f"{late} messages that {self._lost} had acknowledged are not handled elsewhere")

    def _return(self) -> None:
        self._members.bring_back(self._lost)
        self._say(f"{self._lost} is back")
        for publisher in self._publishers:
            if publisher.name in (self._lost, "application"):
                publisher.go(self._lost)
        if self._plan.pattern == "active-passive":
            (consumer,) = self._consumers
            self._until(lambda: not any(map(self._account.unhandled, self._others)), "")
            consumer.go(self._lost)
        time.sleep(self._plan.after_seconds)

    def _finish(self) -> None:
        for publisher in self._publishers:
            publisher.finish()
        self._say("waiting until all is handled")
        if self._plan.pattern == "active-passive":
            self._drain_others()
        self._until(lambda: not self._account.unhandled(), "")

    def _drain_others(self) -> None:
        """Handle what a publisher has sent to another member after the consumer went back: a send was in flight, or failed over."""
        (consumer,) = self._consumers
        for alias in filter(self._account.unhandled, self._others):
            consumer.go(alias)
            self._until(partial(self._is_drained, alias), "")
        consumer.go(self._lost)

    def _is_drained(self, alias: str) -> bool:
        return not self._account.unhandled(alias)

    def _until(self, is_done: Callable[[], bool], failure: str) -> None:
        """Wait until something holds, or nothing has progressed for `STILL_SECONDS`.

        Raises:
            OperationTimeoutError: nothing has progressed; the text is `failure`.
            InvalidArgumentError: a consumer got a message that is not of a drill.
        """
        progress, since = -1, time.monotonic()
        while not is_done():
            foreign = next((each for each in self._consumers if each.foreign), None)
            if foreign is not None:
                raise InvalidArgumentError(
                    f"{foreign.place} holds messages that are not of a drill, e.g. '{foreign.foreign}'; name a subscription that nobody else "
                    "uses"
                )
            found = self._account.progress()
            if found != progress:
                progress, since = found, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS:
                if failure:
                    raise OperationTimeoutError(f"{failure} for {STILL_SECONDS:g} s")
                return
            time.sleep(_SLICE_SECONDS)


class _Own:
    """Members in processes of this machine."""

    def __init__(self, federation: FederationProcess) -> None:
        self._namespaces = federation.namespaces

    def lose(self, alias: str) -> None:
        self._namespaces[alias].kill()

    def bring_back(self, alias: str) -> None:
        self._namespaces[alias].start()


def rehearse(plan: DrillPlan, folder: Path, say: Callable[[str], None] = lambda text: None) -> DrillReport:
    """A drill with two namespaces and a run of its own, below a folder.

    Raises:
        IsthmusError: something did not start.
    """
    say("two namespaces start")
    with FederationProcess(folder, ALIASES, written=_TASKS[plan.pattern]) as opened:
        say("the run starts")
        run = opened.run("--retry-first", "1", "--retry-limit", "2")
        run.wait_phase(("waiting", "moving"))
        report = Drill(opened.federation, plan, _Own(opened), say).play()
        run.end(signal.SIGINT)
        return report
