"""One run per task: claims on a served namespace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.claim.claim import Claim, ClaimKeeper
from isthmus.supervisor.supervisor import ClaimState
from isthmus.testing.federation import FederationProcess
from isthmus.topology.claim import claim_endpoint


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), ("ewr", "jfk")) as opened:
        yield opened


def claim(federation: FederationProcess) -> Claim:
    return Claim("flights", "ewr", NamespaceClients(federation.federation).open)


def remaining(federation: FederationProcess) -> int:
    with NamespaceClients(federation.federation) as clients:
        return len(clients.peek(claim_endpoint("flights", "ewr"))(0, 100))


def test_a_claim_is_held_by_one_and_the_other_learns_by_whom(federation: FederationProcess) -> None:
    first, second = claim(federation), claim(federation)
    first.attempt()
    second.attempt()
    assert first.view().state is ClaimState.HELD
    assert second.view().state is ClaimState.ELSEWHERE
    assert f"process {os.getpid()} on " in second.view().text
    assert second.holder is not None
    assert not second.holder.has_ended()
    first.attempt()
    assert first.view().state is ClaimState.HELD
    first.release()
    second.attempt()
    assert second.view().state is ClaimState.HELD
    second.release()
    assert remaining(federation) == 0


def test_i1_of_many_that_come_at_once_at_most_one_holds_the_claim(federation: FederationProcess) -> None:
    claims = [claim(federation) for _ in range(6)]
    with ThreadPoolExecutor(len(claims)) as pool:
        for _ in range(3):
            list(pool.map(Claim.attempt, claims))
            assert sum(each.view().state is ClaimState.HELD for each in claims) <= 1
            if any(each.view().state is ClaimState.HELD for each in claims):
                break
    for each in claims:
        each.attempt()
    assert sum(each.view().state is ClaimState.HELD for each in claims) == 1
    for each in claims:
        each.release()
    # What the attempts that were too late had put there does no harm, and is removed with the next holder.
    after = claim(federation)
    after.attempt()
    assert after.view().state is ClaimState.HELD
    after.release()
    assert remaining(federation) == 0


def test_a_claim_survives_its_connection_and_the_namespace(federation: FederationProcess) -> None:
    one = claim(federation)
    one.attempt()
    one._disconnect()
    one.attempt()
    assert one.view().state is ClaimState.HELD
    federation.namespaces["ewr"].kill()
    one.attempt()
    federation.namespaces["ewr"].start()
    started = time.monotonic()
    for _ in range(3):
        one.attempt()
    assert one.view().state is ClaimState.HELD
    # The lock was lost with the namespace; to take it again on the connection that found this out needs no time-out.
    assert time.monotonic() - started < 15
    one.release()


def test_i3_a_namespace_that_is_unavailable_is_unreachable_not_an_error(federation: FederationProcess) -> None:
    federation.namespaces["jfk"].stop()
    try:
        keeper = ClaimKeeper(
            [("flights", "ewr"), ("flights", "jfk")], NamespaceClients(federation.federation).open
        ).start()
        while not keeper.decided():
            time.sleep(0.01)
        assert keeper.view("flights", "ewr").state is ClaimState.HELD
        assert keeper.view("flights", "jfk").state is ClaimState.UNREACHABLE
        assert keeper.held_by_others() == {}
        keeper.close()
    finally:
        federation.namespaces["jfk"].start()


def test_a_missing_claim_entity_says_what_to_do(federation: FederationProcess, tmp_path: Path) -> None:
    stray = Claim("no-such-task", "ewr", NamespaceClients(federation.federation).open)
    stray.attempt()
    assert stray.view().state is ClaimState.FAULTY
    assert "isthmus apply" in stray.view().text
