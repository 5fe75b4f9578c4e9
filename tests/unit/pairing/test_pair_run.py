"""The loops of a pair."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from isthmus.pairing.alias.proxy import Lead
from isthmus.pairing.pair_run import PairRun, pause_seconds
from isthmus.pairing.state.state import Phase

WAIT_SECONDS = 20.0


class Session:
    """A pair with an hour between its rounds, and a fail-over that begins when a test says so."""

    def __init__(self) -> None:
        self.pair = SimpleNamespace(name="contoso", listen="127.0.0.1:0", interval_ms=3_600_000)
        self.members: dict[str, Any] = {}
        self.keeper = SimpleNamespace(follow=lambda state: state)
        self.lead = Lead(1, "ewr", "127.0.0.1", 1)
        self.rounds = 0
        self.has_begun, self.has_gone_on = threading.Event(), threading.Event()

    def addresses(self) -> dict[str, tuple[str, int]]:
        return {}

    def lead_reader(self, addresses: object) -> Callable[[], Lead]:
        return lambda: self.lead

    def state(self) -> SimpleNamespace:
        return SimpleNamespace(phase=Phase.OPENING, pair="contoso", is_insisting=False)

    def finish(self, wait_seconds: float, note: object = None) -> None:
        self.rounds += 1
        (self.has_begun if self.rounds == 1 else self.has_gone_on).set()


def test_i4_a_fail_over_is_carried_on_as_soon_as_the_alias_leads_to_no_member() -> None:
    session: Any = Session()

    async def play() -> bool:
        running = asyncio.create_task(PairRun(session).run())
        await asyncio.to_thread(session.has_begun.wait, WAIT_SECONDS)
        session.lead = Lead(2, "", "", 0)
        has_gone_on: bool = await asyncio.to_thread(session.has_gone_on.wait, WAIT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        await running
        return has_gone_on

    assert asyncio.run(play())
    assert session.rounds == 2


def test_a_long_comparison_is_followed_by_a_long_pause_where_the_namespaces_do_not_report_changes() -> None:
    assert pause_seconds(2.0, 0.1) == 2.0
    assert pause_seconds(2.0, 10.0) == 40.0
    assert pause_seconds(2.0, 10.0, is_told=True) == 5.0
