"""One run per task: the claim that a run holds at each namespace of a task.

What it is: a lock on a message. In the task's claim subscription (`isthmus.topology.claim`) the message with the lowest
sequence number is the claim; the run that holds its lock may move the task, and keeps the lock by renewing it. Besides it,
also locked, the holder keeps a message that names it, which another run reads by peeking. When the holder is killed the
locks expire, and the next run takes the claim; at a regular end it completes both, and nothing remains.
What it is not: protection against operators who receive from the subscription. It needs only the broker's clock.

Invariants:
    I1. At most one run holds the claim of a task at a namespace: two messages that two runs send there at once do no harm,
        since only the one with the lowest number counts.
    I2. A run counts a claim as held only until the lock's duration after the last renewal that was requested and
        granted, by its own monotonic clock.
    I3. `attempt` never raises: an obstacle is part of the view.
    I4. The leases of a task end before another run can hold its claim, even if this process is frozen: they are sent
        `remaining_seconds`, and end by themselves when they receive nothing more (`isthmus.bridge.lease.fence`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from isthmus.amqp import codec, section
from isthmus.amqp.performative import Accepted, Released
from isthmus.clock import Clock, SystemClock
from isthmus.errors import EntityNotFoundError, IsthmusError, LockLostError, OperationTimeoutError
from isthmus.replication.verification.identity import identify
from isthmus.supervisor.examination.preflight import is_fault
from isthmus.supervisor.supervisor import ClaimState, ClaimView
from isthmus.topology.claim import CLAIM_LOCK_MS, CLAIM_TOPIC, claim_endpoint
from isthmus.topology.model import Endpoint
from isthmus.transport import Client, Management, Receiver, Sender

__all__ = ["Claim", "ClaimKeeper", "Holder", "TaskClaimedError"]

log = logging.getLogger(__name__)

_CREDIT = 50
# How long a free claim takes to arrive at most; a claim that another run holds costs a new run this long.
_ARRIVAL_SECONDS = 2.0
_PEEK_COUNT = 200


class TaskClaimedError(IsthmusError):
    """Another run moves the task."""

    code = "task-claimed"

    def __init__(self, task: str = "", alias: str = "", holder: str = "") -> None:
        super().__init__("", task=task, alias=alias, holder=holder)

    def text(self) -> str:
        a = self.attributes
        return (
            f"task {a.get('task')} is run by {a.get('holder') or 'another process'} (claim at {a.get('alias')}); "
            "stop that run first, or wait until its claim expires"
        )


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that holds a claim.

    Attributes:
        host: the machine's name.
        process: its process id there.
        process_started: when that process started, in seconds since the epoch; distinguishes it from a later one of that id.
        since: when it took the claim, ISO 8601.
    """

    host: str
    process: int
    process_started: float
    since: str

    @classmethod
    def this(cls) -> Holder:
        """This process, from now on."""
        own = psutil.Process()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(socket.gethostname(), own.pid, own.create_time(), since)

    @classmethod
    def parse(cls, text: bytes) -> Holder | None:
        """The holder that a message names; None if it names none."""
        try:
            values = json.loads(text)
            return cls(
                str(values["host"]), int(values["process"]), float(values["process_started"]), str(values["since"])
            )
        except (ValueError, KeyError, TypeError):
            return None

    def has_ended(self) -> bool:
        """Whether it ran on this machine and has ended; False where that is unknown."""
        if self.host != socket.gethostname():
            return False
        try:
            return abs(psutil.Process(self.process).create_time() - self.process_started) > 1.0
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False

    def __str__(self) -> str:
        return f"process {self.process} on {self.host} since {self.since}"


@dataclass(slots=True)
class _Held:
    """The locks that are held: of the claim, and of the message that names the holder."""

    tokens: list[bytes]
    until: float


class Claim:
    """The claim of one task at one namespace.

    Args:
        task: the task's name.
        alias: the namespace's.
        connect: opens a connection to the claim subscription.
        clock: monotonic and wall time.
        lock_ms: the lock duration of the claim subscription.
    """

    def __init__(
        self,
        task: str,
        alias: str,
        connect: Callable[[Endpoint], Client],
        *,
        clock: Clock | None = None,
        lock_ms: int = CLAIM_LOCK_MS,
    ) -> None:
        self.task = task
        self.alias = alias
        self.holder: Holder | None = None
        self._endpoint = claim_endpoint(task, alias)
        self._path = self._endpoint.entity
        self._connect = connect
        self._clock = clock or SystemClock()
        self._lock_seconds = lock_ms / 1000
        self._client: Client | None = None
        # A namespace may release the locks of a link when the link is detached, so it stays attached while the claim is held.
        self._receiver: Receiver | None = None
        self._held: _Held | None = None
        self._view = ClaimView(ClaimState.PENDING)

    def view(self) -> ClaimView:
        """The state of the claim."""
        held = self._held
        if held is not None:
            if self._clock.monotonic() < held.until:
                return ClaimView(ClaimState.HELD)
            return ClaimView(ClaimState.UNREACHABLE, "the claim could not be renewed in time")
        return self._view

    def remaining_seconds(self) -> float:
        """How long this run certainly holds the claim without a further renewal; 0 if it does not."""
        held = self._held
        return 0.0 if held is None else max(0.0, held.until - self._clock.monotonic())

    def attempt(self) -> float:
        """Takes the claim, or renews it; blocks for seconds at most.

        Returns:
            After how many seconds to call again.
        """
        try:
            if self._held is not None:
                try:
                    self._renew(self._held)
                except LockLostError:
                    log.warning("the claim of task %s at %s was lost; taking it again", self.task, self.alias)
                    self._held = None
            if self._held is None:
                self._take()
        except EntityNotFoundError as error:
            self._disconnect()
            self._held = None
            self._view = ClaimView(ClaimState.FAULTY, f"{error} Make it by: isthmus apply")
        except Exception as error:  # noqa: BLE001 - after any error, the claim must be retried, and stay renewed
            self._disconnect()
            if self._held is None:
                faulty = isinstance(error, IsthmusError) and is_fault(error)
                state = ClaimState.FAULTY if faulty else ClaimState.UNREACHABLE
                self._view = ClaimView(state, str(error) or type(error).__name__)
            return min(2.0, self._lock_seconds / 5)
        return self._lock_seconds / 3 if self._held is not None else min(2.0, self._lock_seconds / 5)

    def release(self) -> None:
        """Release the claim; never raises."""
        held, self._held = self._held, None
        self._view = ClaimView(ClaimState.PENDING)
        if held is not None and self._clock.monotonic() < held.until:
            with contextlib.suppress(IsthmusError, OSError):
                management = Management(self._connected(), self._path)
                # The name first: a claim without a name is free, a name without a claim has no meaning.
                for token in reversed(held.tokens):
                    management.finish(management.start_disposition("completed", [token]), 5.0)
        self._disconnect()

    # ---- steps

    def _connected(self) -> Client:
        if self._client is None or self._client.error is not None:
            self._disconnect()
            self._client = self._connect(self._endpoint)
        return self._client

    def _disconnect(self) -> None:
        client, self._client, self._receiver = self._client, None, None
        if client is not None:
            client.abandon()

    def _renew(self, held: _Held) -> None:
        asked_at = self._clock.monotonic()
        management = Management(self._connected(), self._path)
        try:
            management.renew(held.tokens)
        finally:
            management.close()
        held.until = asked_at + self._lock_seconds

    def _take(self) -> None:
        client = self._connected()
        management = Management(client, self._path)
        asked_at = self._clock.monotonic()
        if not management.peek(0, 1):
            self._send(client, {"kind": "claim"})
        receiver = Receiver(client, self._path).wait_attached(10.0)
        receiver.grant(_CREDIT)
        taken = self._receive(client, receiver, lambda: receiver.received > 0)
        found = [(identify(message).sequence, message) for message in management.peek(0, _PEEK_COUNT)]
        lowest = min((sequence for sequence, _ in found), default=-1)
        claim = next((each for each in taken if each[2] == lowest), None)
        for each in taken:
            if each is not claim:
                receiver.dispose(each[0], each[0], Accepted() if claim else Released())
        if claim is None:
            self._refused(found)
            self._give_back(client, receiver)
            receiver.close()
        else:
            name = Holder.this()
            self._send(client, {"kind": "holder", **asdict(name)})
            named = self._receive(client, receiver, lambda: bool(receiver.arrived))
            self._give_back(client, receiver)
            tokens = [claim[1], *(token for _, token, _ in named)]
            self._held = _Held(tokens, asked_at + self._lock_seconds)
            self._receiver = receiver
            self.holder = name
        management.close()
        client.flush()

    @staticmethod
    def _give_back(client: Client, receiver: Receiver) -> None:
        """Revokes the credit, so that nothing more arrives, and releases late messages."""
        receiver.drain()
        with contextlib.suppress(OperationTimeoutError):
            client.wait_until(lambda: receiver.drained or receiver.error is not None, 5.0, "drain")
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1, Released())

    def _refused(self, found: Sequence[tuple[int, bytes]]) -> None:
        named = [holder for _, message in found if (holder := Holder.parse(_body(message)))]
        self.holder = named[-1] if named else None
        self._view = ClaimView(ClaimState.ELSEWHERE, str(self.holder) if self.holder else "another run")

    @staticmethod
    def _receive(client: Client, receiver: Receiver, condition: Callable[[], bool]) -> list[tuple[int, bytes, int]]:
        """The received messages: delivery id, lock token and sequence number of each."""
        with contextlib.suppress(OperationTimeoutError):
            client.wait_until(lambda: condition() or receiver.error is not None, _ARRIVAL_SECONDS, "claim")
        if receiver.error is not None:
            raise receiver.error
        return [
            (run.first_id + index, bytes(token), identify(payload).sequence)
            for run in receiver.take()
            for index, (token, payload) in enumerate(zip(run.tags, run.payloads, strict=True))
        ]

    def _send(self, client: Client, body: dict[str, Any]) -> None:
        client.authorize(CLAIM_TOPIC)
        sender = Sender(client, CLAIM_TOPIC).wait_ready(10.0)
        message = section.encode_message(json.dumps(body).encode(), properties={"subject": self.task})
        sender.send_all([message], timeout_seconds=10.0)
        sender.close()


def _body(message: bytes) -> bytes:
    start, end = section.locate(message).body
    value = codec.decode(message, start + 3)[0] if end else b""
    return bytes(value) if isinstance(value, (bytes, memoryview)) else b""


class ClaimKeeper:
    """All claims of a run, each kept by a thread of its own.

    Args:
        wanted: (task, alias) of each.
        connect: opens a connection, authorized for an entity.
    """

    def __init__(self, wanted: Sequence[tuple[str, str]], connect: Callable[[Endpoint], Client]) -> None:
        self._claims = {key: Claim(*key, connect) for key in dict.fromkeys(wanted)}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(claim,), name=f"claim-{claim.task}-{claim.alias}", daemon=True)
            for claim in self._claims.values()
        ]

    def start(self) -> ClaimKeeper:
        """Begins to take the claims; does not wait."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Release all claims; blocks for seconds at most."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(15.0)

    def view(self, task: str, alias: str) -> ClaimView:
        """The state of a task's claim at a namespace."""
        return self._claims[task, alias].view()

    def remaining_seconds(self, task: str, alias: str) -> float:
        """How long the claim of a task at a namespace is certainly held; see `Claim`."""
        return self._claims[task, alias].remaining_seconds()

    def decided(self) -> bool:
        """Whether every claim is known to be held, held by another run, or unreachable."""
        return all(claim.view().state is not ClaimState.PENDING for claim in self._claims.values())

    def held_by_others(self) -> dict[tuple[str, str], Holder | None]:
        """The claims that other runs hold, by (task, alias), with the holder where it is known."""
        return {key: claim.holder for key, claim in self._claims.items() if claim.view().state is ClaimState.ELSEWHERE}

    def _keep(self, claim: Claim) -> None:
        while not self._stop.is_set():
            self._stop.wait(claim.attempt())
        claim.release()
