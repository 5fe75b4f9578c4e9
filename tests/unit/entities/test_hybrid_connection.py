"""Hybrid connections as entities: names, settings, restarts, failed commits."""

from __future__ import annotations

import pytest

from isthmus.entities import AuthorizationRule, Engine, EntityStatus, Limits
from isthmus.entities.hybrid_connection import HybridConnectionDescription
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, QuotaExceededError, StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

RULE = AuthorizationRule("caller", "p", "s", ["Send"])


class Space:
    def __init__(self, **limits: int) -> None:
        self.journal = MemoryJournal()
        self.limits = Limits(**limits)
        self.start()

    def start(self) -> None:
        self.engine = Engine(self.journal, ManualClock(), limits=self.limits)
        self.hybrids = self.engine.hybrid_connections

    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)


def test_a_restart_finds_what_was_committed_i1() -> None:
    space = Space()
    wanted = HybridConnectionDescription(
        requires_client_authorization=False, user_metadata="stock", authorization_rules=[RULE]
    )
    space.hybrids.create("Stock/Level", wanted)
    space.hybrids.create("gone")
    space.commit()
    space.hybrids.update("gone", HybridConnectionDescription(status=EntityStatus.DISABLED))
    space.hybrids.delete("gone")
    space.commit()
    space.start()
    assert space.hybrids.names() == ["Stock/Level"]
    assert space.hybrids.get("stock/level") == wanted
    assert space.hybrids.key_names.having("caller") == ["stock/level"]


def test_a_failed_commit_goes_back_i1() -> None:
    space = Space()
    space.hybrids.create("standing")
    space.commit()
    reported: list[str] = []
    space.hybrids.on_change = reported.append
    space.hybrids.create("new")
    space.hybrids.delete("standing")
    space.journal.fail_writes = OSError("full")
    with pytest.raises(StoreError):
        space.engine.begin_commit()
    space.journal.fail_writes = None
    assert space.hybrids.names() == ["standing"]
    assert reported == ["standing", ""]


def test_names_are_shared_with_all_entities_i2() -> None:
    engine = Space().engine
    engine.create_queue("queue")
    engine.hubs.create("hub")
    engine.hybrid_connections.create("Hybrid")
    for create in (engine.create_queue, engine.create_topic, engine.hubs.create, engine.hybrid_connections.create):
        with pytest.raises(EntityExistsError):
            create("hybrid")
    for name in ("QUEUE", "hub"):
        with pytest.raises(EntityExistsError):
            engine.hybrid_connections.create(name)


def test_refusals() -> None:
    hybrids = Space(max_entities=1).hybrids
    for name in ("", "/a", "a//b", "a b", "$hc"):
        with pytest.raises(InvalidArgumentError):
            hybrids.create(name)
    for wrong in (
        HybridConnectionDescription(user_metadata="x" * 1025),
        HybridConnectionDescription(status=EntityStatus.SEND_DISABLED),
    ):
        with pytest.raises(InvalidArgumentError):
            hybrids.create("a", wrong)
    hybrids.create("a")
    with pytest.raises(QuotaExceededError):
        hybrids.create("b")
    for change in (hybrids.delete, hybrids.row, lambda name: hybrids.update(name, HybridConnectionDescription())):
        with pytest.raises(EntityNotFoundError):
            change("b")


def test_a_fault_in_the_relays_callback_keeps_no_store_unavailable() -> None:
    space = Space()
    space.hybrids.create("standing")
    space.engine.create_queue("q")
    space.commit()

    def odd(name: str) -> None:
        raise ValueError(name)

    space.hybrids.on_change = odd
    space.engine.create_queue("new")
    space.journal.fail_writes = OSError("full")
    with pytest.raises(StoreError):
        space.engine.begin_commit()
    space.journal.fail_writes = None
    space.engine.create_queue("newer")
    space.commit()
    assert [name for name, _ in space.engine.list_queues()] == ["newer", "q"]
