"""The claims of tasks whose entities are deleted.

What it is: taking, as a run does, the claims that are about to be deleted, so that nothing is deleted while a run still moves
the task, and no run starts meanwhile. What it is not: the deletion.

Invariants:
    I1. Within, no run holds one of the claims; if one does, that is an error, and nothing has been changed.
    I2. A claim whose holder ran on this machine and has ended, e.g. a removal that was killed, or that has no name, is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from isthmus.connectors.secret import scrub
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.claim.claim import ClaimKeeper, TaskClaimedError
from isthmus.supervisor.supervisor import ClaimState
from isthmus.topology.claim import CLAIM_LOCK_MS
from isthmus.topology.model import Endpoint, Federation
from isthmus.transport import Client

__all__ = ["ClaimNotTakenError", "held_claims"]

DECIDE_SECONDS = 20.0
LAPSE_SECONDS = CLAIM_LOCK_MS / 1000 + DECIDE_SECONDS
_PAUSE_SECONDS = 0.05


class ClaimNotTakenError(IsthmusError):
    """It is unknown whether a run moves the task."""

    code = "claim-not-taken"
    retryable = True

    def __init__(self, task: str = "", alias: str = "", reason: str = "") -> None:
        super().__init__("", task=task, alias=alias, reason=scrub(reason))

    def text(self) -> str:
        a = self.attributes
        return f"it is unknown whether a run moves task {a.get('task')} (claim at {a.get('alias')}: {a.get('reason')}); nothing was deleted"


@contextmanager
def held_claims(
    federation: Federation,
    wanted: Sequence[tuple[str, str]],
    connect: Callable[[Endpoint], Client] | None = None,
) -> Iterator[None]:
    """This process holds claims within.

    Args:
        federation: with absolute paths.
        wanted: (task, alias) of each.
        connect: opens a connection, authorized for an entity; by default to the federation's namespaces.

    Raises:
        TaskClaimedError: a run holds one of them.
        ClaimNotTakenError: one of them cannot be taken.
    """
    keeper = ClaimKeeper(wanted, connect or NamespaceClients(federation, "isthmus-remove").open).start()
    try:
        began = time.monotonic()
        while (waited := time.monotonic() - began) < LAPSE_SECONDS:
            if not _expires(keeper) and (keeper.decided() or waited >= DECIDE_SECONDS):
                break
            time.sleep(_PAUSE_SECONDS)
        for (task, alias), holder in keeper.held_by_others().items():
            raise TaskClaimedError(task, alias, str(holder or ""))
        for task, alias in wanted:
            view = keeper.view(task, alias)
            if view.state is not ClaimState.HELD:
                raise ClaimNotTakenError(task, alias, view.text or "no answer")
        yield
    finally:
        keeper.close()


def _expires(keeper: ClaimKeeper) -> bool:
    """Whether another run holds claims, and every such run may have ended."""
    holders = keeper.held_by_others().values()
    return bool(holders) and all(holder is None or holder.has_ended() for holder in holders)
