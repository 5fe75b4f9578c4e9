"""Receiving with a window of credit.

What it is: a receiver link that hands over runs of deliveries as they arrive, and disposes of runs. What it is not: a
buffer of messages, a lock renewer.

Invariants:
    I1. Credit on the link never exceeds what the owner granted.
    I2. Runs are handed over in the order of arrival; nothing is dropped.
    I3. With `confirms`, `outcomes` has one answer of the peer for each delivery that the owner disposed of
        (OASIS AMQP 1.0, 2.8.3: rcv-settle-mode second).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Described, Symbol
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.amqp import Link, Transfers
    from isthmus.transport.client import Client
    from isthmus.transport.terms import LinkTerms

__all__ = ["Deliveries", "Receiver"]

_MASK32 = 0xFFFFFFFF
_SESSION_FILTER = Symbol("com.microsoft:session-filter")


class Deliveries(NamedTuple):
    """A run of deliveries with consecutive ids; tags are the lock tokens."""

    first_id: int
    tags: Sequence[bytes]
    payloads: Sequence[bytes]


class Receiver:
    """A link from the entity at `path`.

    Args:
        client: an open connection, authorized for `path`.
        path: queue, subscription or dead-letter queue.
        settled: receive and delete instead of peek-lock.
        confirms: whether the peer is asked to confirm each disposition.
        in_session: whether the entity requires sessions; the link then holds one.
        session_id: which; None is the next available one.
        terms: of a link that is not to a Service Bus entity; then `path` only names it.

    Attributes:
        session_id: of the session that the link holds; None without one.
        arrived: runs that the owner has not taken.
        received: deliveries that came so far.
        outcomes: with `confirms`, first and last delivery id and the peer's answer, which the owner takes out.
        drained: whether the last drain has been answered.
        error: why the link can no longer be used.
    """

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        settled: bool = False,
        confirms: bool = False,
        in_session: bool = False,
        session_id: str | None = None,
        terms: LinkTerms | None = None,
    ) -> None:
        self.client = client
        self.path = path
        self.arrived: deque[Deliveries] = deque()
        self.received = 0
        self.outcomes: deque[tuple[int, int, Any]] = deque()
        self._confirms = confirms
        self.drained = False
        self.attached = False
        self.error: IsthmusError | None = None
        self.session_id: str | None = None
        self._closes = terms is None or terms.closes
        self._drains = terms is None or terms.drains
        self._is_taking_back = False
        self._session = client.begin(self)
        source = terms.source if terms is not None else None
        self.link = self._session.attach_receiver(
            (terms.name if terms is not None else "") or f"receive-{uuid.uuid4().hex[:12]}",
            source or Source(path, filter={_SESSION_FILTER: session_id} if in_session else None),
            target=Target(client.connection.container_id),
            snd_settle_mode=1 if settled else 0,
            rcv_settle_mode=1 if confirms else 0,
        )
        self.link.context = self

    def wait_attached(self, timeout_seconds: float = 30.0) -> Receiver:
        """Blocks until the peer has attached the link.

        Raises:
            IsthmusError: the peer refused.
            OperationTimeoutError: no answer came in time.
        """
        self.client.wait_until(
            lambda: self.attached or self.error is not None, timeout_seconds, f"'{self.path}': no answer to attach"
        )
        if self.error is not None:
            raise self.error
        return self

    @property
    def credit(self) -> int:
        """Deliveries that the peer may still send."""
        return self.link.credit

    def grant(self, credit: int) -> None:
        """Sets the credit: the peer may send so many deliveries more, counted from now."""
        if self.error is None:
            self._is_taking_back = False
            self.link.grant(credit)

    def drain(self) -> None:
        """Takes the credit back; once `drained` is set, nothing more can come."""
        self.drained = self.link.credit == 0
        if self.error is not None or self.drained:
            return
        if self._drains:
            self.link.grant(self.link.credit, drain=True)
        else:
            self._is_taking_back = True
            self.link.take_back()

    def take(self) -> list[Deliveries]:
        """The runs that came since the last call."""
        runs = list(self.arrived)
        self.arrived.clear()
        return runs

    def dispose(self, first: int, last: int, state: Any = None) -> None:
        """Disposes of deliveries first to last (ids, that may be counted on beyond 32 bits); state None completes them."""
        if self.error is None:
            self.link.dispose(first & _MASK32, last & _MASK32, state, settled=not self._confirms)

    def close(self) -> None:
        """Detaches; the locks of unsettled deliveries stay until they expire."""
        self.link.detach(closed=self._closes)
        self.client.end(self._session)

    # ---- called by the client

    def on_attached(self, link: Link) -> None:
        """The peer answered; a null source announces a refusal."""
        self.attached = link.source is not None
        granted = (link.source.filter or {}).get(_SESSION_FILTER) if isinstance(link.source, Source) else None
        self.session_id = granted.value if isinstance(granted, Described) else granted

    def on_credit(self, link: Link) -> None:
        """The peer's flow: credit used up or given back."""
        if self._is_taking_back and link.peer_credit == 0:
            self._is_taking_back = False
            link.stopped()
        if link.credit == 0:
            self.drained = True

    def on_transfers(self, event: Transfers) -> None:
        """Deliveries came."""
        self.arrived.append(Deliveries(event.first_delivery_id, event.tags, event.payloads))
        self.received += len(event.payloads)
        if event.link.credit == 0:
            self.drained = True

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        """Not used: this is for links that send."""

    def on_settled(self, first: int, last: int, state: Any) -> None:
        """The peer's answer to a disposition."""
        self.outcomes.append((first, last, state))

    def on_lost(self, error: IsthmusError) -> None:
        """The link is gone."""
        if self.error is None:
            self.error = error
