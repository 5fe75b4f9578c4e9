"""The demo, from start to verification.

What it is: the order of steps. Set-up (three namespaces, lint, plan, apply), then `isthmus run` as an operator would start
it, with publishers and consumers (boards) as applications: a few flights as a warm-up, a burst of most of them at full
speed, then the rest at a steady pace, because latency under a burst is only the length of the burst. Then all processes stop, and all
namespaces are read independently. What it is not: the display (`isthmus.demo.display`).

Invariants:
    I1. The verdict comes from the proof alone, not from counters of routes, boards or publishers, except for the number
        of messages that the namespaces acknowledged to the publishers.
    I2. However the demo ends, every process that it started has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from isthmus.demo.flight import ORIGINS, flights
from isthmus.demo.player import Player
from isthmus.demo.proof import prove
from isthmus.demo.stage import AUDIT, BOARDS, TASK, TOPIC, Stage
from isthmus.errors import OperationTimeoutError
from isthmus.supervisor.status import read_status
from isthmus.topology.model import Federation

__all__ = ["MONTH_FLIGHTS", "YEAR_FLIGHTS", "Play", "Scene"]

MONTH_FLIGHTS, YEAR_FLIGHTS = 27_004, 336_776

OPENING = 3
PACED_SHARE = 0.1
PACED_LIMIT = 1000
PACED_PER_SECOND = 100.0
START_SECONDS = 240.0
STILL_SECONDS = 60.0
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class Scene:
    """The state of the demo at a moment.

    Attributes:
        act: the present step, in a few words.
        seconds: since the start.
        total: messages to be sent by all publishers.
        sent: acknowledged to each publisher.
        received: by each board.
        routes: from the run's status document.
    """

    act: str
    seconds: float
    total: int
    sent: dict[str, int]
    received: dict[str, int]
    routes: list[dict[str, Any]]


class Play:
    """One run of the demo.

    Args:
        folder: where namespaces, checkpoints and logs go.
        messages: how many flights to publish.
        show: called with each scene.
    """

    def __init__(self, folder: Path, messages: int, show: Callable[[Scene], None]) -> None:
        self.folder = folder
        self.month = 1 if messages <= MONTH_FLIGHTS else None
        self.counts = Counter(str(flight["origin"]) for flight in islice(flights(self.month), messages))
        self.total = sum(self.counts.values())
        self.opening = {origin: min(OPENING, self.counts[origin]) for origin in ORIGINS}
        self.paced = {origin: min(PACED_LIMIT, int(self.counts[origin] * PACED_SHARE)) for origin in ORIGINS}
        self._show = show
        self._began = time.monotonic()
        self._act = ""
        self._stage = Stage(folder)
        self._state = folder / "run"
        self._publishers: dict[str, Player] = {}
        self._boards: dict[str, Player] = {}
        self._run: Player | None = None

    def perform(self) -> dict[str, Any]:
        """Run it; the report.

        Raises:
            IsthmusError: something did not start, or ended before its time.
        """
        try:
            self._scene("three namespaces start")
            self._stage.open()
            self._scene("lint, plan, apply")
            federation, changes = self._stage.federate()
            self._cast()
            set_up_seconds = time.monotonic() - self._began
            figures = self._acts()
            self._scene("everybody stops")
            boards = self._end()
            self._scene("all namespaces are read for the proof")
            report = self._report(federation, figures, boards)
            return report | {
                "changes": changes,
                "set_up_seconds": round(set_up_seconds, 1),
                "seconds": round(time.monotonic() - self._began, 1),
            }
        finally:
            self._clear()

    # ---- processes

    def _cast(self) -> None:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        self._scene("routes start in Spark")
        main = "from isthmus.cli.app import main; main()"
        command = ["-c", main, "run", str(self._stage.file), "--state", str(self._state), "--json"]
        self._run = Player("isthmus run", [*command, "--retry-first", "1"], logs / "run.log")
        for origin, namespace in zip(ORIGINS, self._stage.namespaces.values(), strict=True):
            connection = {"connection_string": namespace.connection_string, "topic": TOPIC}
            publisher = Player(
                f"publisher {origin}", ["-m", "isthmus.demo.publisher"], logs / f"publisher-{origin}.log"
            )
            publisher.say(
                **connection,
                origin=origin,
                month=self.month,
                limit=self.counts[origin],
                opening=self.opening[origin],
                paced=self.paced[origin],
                rate_per_second=PACED_PER_SECOND,
            )
            self._publishers[origin] = publisher
            board = Player(f"board {origin}", ["-m", "isthmus.demo.consumer"], logs / f"board-{origin}.log")
            paced_from = {name: self.counts[name] - self.paced[name] + 1 for name in ORIGINS}
            board.say(**connection, subscription=BOARDS, region=origin, burst_from=OPENING + 1, paced_from=paced_from)
            self._boards[origin] = board
        for player in (*self._publishers.values(), *self._boards.values()):
            player.wait_for("ready", START_SECONDS)
        self._watch(self._routes_wait, START_SECONDS, "the routes did not start")

    def _routes_wait(self) -> bool:
        routes = self._routes()
        return bool(routes) and all(route["phase"] in {"waiting", "moving"} for route in routes)

    # ---- steps

    def _acts(self) -> dict[str, Any]:
        self._scene("the first departures are published, as a warm-up")
        waking = time.monotonic()
        for publisher in self._publishers.values():
            publisher.say()
        opening = sum(self.opening.values())
        self._watch_boards(opening, START_SECONDS)
        woken_seconds = time.monotonic() - waking
        self._scene("departures are published as fast as they can be")
        began = time.time()
        for publisher in self._publishers.values():
            publisher.say()
        burst = self.total - opening - sum(self.paced.values())
        self._watch_boards(opening + burst)
        published_seconds = max(player.output.get("burst_seconds", 0.0) for player in self._publishers.values())
        self._scene(f"the rest is published at {PACED_PER_SECOND:.0f} a second from each airport")
        for publisher in self._publishers.values():
            publisher.say()
        self._watch_boards(self.total)
        memory = (read_status(self._state) or {}).get("memory_bytes", 0)
        return {
            "began": began,
            "woken_seconds": woken_seconds,
            "burst": burst,
            "published_seconds": published_seconds,
            "memory_bytes": memory,
        }

    def _watch_boards(self, goal: int, still_seconds: float = STILL_SECONDS) -> None:
        """Waits until every board has shown `goal` messages, or none has shown anything new for a while."""
        seen, changed_at = -1, time.monotonic()

        def done() -> bool:
            nonlocal seen, changed_at
            counts = self._received()
            if sum(counts.values()) > seen:
                seen, changed_at = sum(counts.values()), time.monotonic()
            return min(counts.values()) >= goal or time.monotonic() - changed_at > still_seconds

        self._watch(done, float("inf"), "")

    def _watch(self, done: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        limit = time.monotonic() + timeout_seconds
        while not done():
            if time.monotonic() > limit:
                raise OperationTimeoutError(f"{what} within {timeout_seconds:.0f} s; see {self.folder / 'logs'}")
            for player in (self._run, *self._publishers.values(), *self._boards.values()):
                if player is not None:
                    player.check()
            self._scene(self._act)
            time.sleep(LOOK_SECONDS)

    # ---- the end

    def _end(self) -> list[dict[str, Any]]:
        for player in self._publishers.values():
            player.join(30.0)
        if self._run is not None:
            self._run.interrupt()
        output = []
        for board in self._boards.values():
            board.say()
            board.wait_for("paced_ms", 60.0)
            board.join(10.0)
            output.append(board.output)
        if self._run is not None:
            self._run.join(90.0)
        return output

    def _report(self, federation: Federation, figures: dict[str, Any], boards: list[dict[str, Any]]) -> dict[str, Any]:
        sent = {origin: player.output.get("sent", 0) for origin, player in self._publishers.items()}
        proof = prove(federation, TASK, TOPIC, AUDIT, sent)
        burst_ms = sorted(each for board in boards for each in board["burst_ms"])
        paced_ms = sorted(each for board in boards for each in board["paced_ms"])
        seconds = max(max(board["last_burst"] for board in boards) - figures["began"], 1e-3)
        settled = paced_ms or burst_ms
        return {
            "sent": sum(sent.values()),
            "lost": proof["lost"],
            "duplicated": proof["duplicated"],
            "out_of_order": proof["out_of_order"],
            "messages_per_second": round(len(burst_ms) / seconds),
            "p50_ms": _quantile(settled, 0.5),
            "p99_ms": _quantile(settled, 0.99),
            "received": proof["received"],
            "sent_by": sent,
            "burst": {
                "messages": figures["burst"],
                "published_seconds": round(figures["published_seconds"], 1),
                "arrived_seconds": round(seconds, 1),
                "p50_ms": _quantile(burst_ms, 0.5),
                "p99_ms": _quantile(burst_ms, 0.99),
            },
            "paced": {"messages": sum(self.paced.values()), "per_second": PACED_PER_SECOND * len(ORIGINS)},
            "woken_seconds": round(figures["woken_seconds"], 1),
            "memory_bytes": figures["memory_bytes"],
            "comparisons": proof["comparisons"],
        }

    def _clear(self) -> None:
        for player in (self._run, *self._publishers.values(), *self._boards.values()):
            if player is not None:
                player.interrupt()
        for player in (self._run, *self._publishers.values(), *self._boards.values()):
            if player is not None:
                player.join(30.0)
        self._stage.close()

    # ---- what can be seen

    def _received(self) -> dict[str, int]:
        return {origin: board.output.get("received", 0) for origin, board in self._boards.items()}

    def _routes(self) -> list[dict[str, Any]]:
        return list((read_status(self._state) or {}).get("routes", ()))

    def _scene(self, act: str) -> None:
        self._act = act
        sent = {origin: player.output.get("sent", 0) for origin, player in self._publishers.items()}
        seconds = time.monotonic() - self._began
        self._show(Scene(act, seconds, self.total, sent, self._received(), self._routes()))


def _quantile(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) if ordered else None
